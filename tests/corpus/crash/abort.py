"""A C++ library throws an exception that nobody catches.

culprit: 0
kind: crash
hint: SIGABRT, compiled|library|abort
"""

import ctypes
import os
import sys

import numpy as np

import torsh_runtime as tr


def decode(image: bytes) -> None:
    """What a decoder with a fault does."""
    sys.stderr.write(
        "terminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  jpeg: corrupt scan header\n"
    )
    sys.stderr.flush()
    ctypes.CDLL(None).abort()


def main() -> None:
    tr.init_process_group(timeout=30)
    for step in range(10):
        if step == 3 and os.environ["RANK"] == "0":
            decode(b"\xff\xd8")
        tr.all_reduce(np.ones(8, np.float32))


main()
