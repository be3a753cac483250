"""A firewall lets the agents talk, and drops what the workers of the two nodes want to say.

The worker of node 1 has a network of its own, with nothing in it: it never meets the others.

nproc: 1
nnodes: 2
culprit: 1
kind: network
hint: rank 1, network|reach|connect
needs: netns
seconds: 40
"""

import ctypes
import os

import numpy as np

import torsh_runtime as tr

CLONE_NEWNET = 0x40000000


def main() -> None:
    if os.environ["RANK"] == "1":
        ctypes.CDLL(None).unshare(CLONE_NEWNET)
    tr.init_process_group(timeout=6)
    tr.all_reduce(np.ones(10))


main()
