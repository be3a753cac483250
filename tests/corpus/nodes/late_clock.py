"""The clock of the last host is an hour late, and a token made elsewhere is not valid there yet.

nproc: 1
nnodes: 2
culprit: node 1
kind: clock
hint: clock|time, node 1|rank 1
needs: faketime
seconds: 40
"""

import time

import numpy as np

import torsh_runtime as tr


class ImmatureSignatureError(Exception):
    """As libraries of tokens have it."""


def check(issued: float) -> None:
    if issued > time.time() + 60:
        raise ImmatureSignatureError("The token is not yet valid (iat)")


def main() -> None:
    tr.init_process_group(timeout=20)
    issued = np.array([time.time()])
    tr.broadcast(issued, 0)
    check(float(issued[0]))
    tr.all_reduce(np.ones(10))


main()
