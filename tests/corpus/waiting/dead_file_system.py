"""A file server does not answer: rank 1 is in state D, in a call that does not end.

The file system is FUSE's, whose server never says a word.

nproc: 2
culprit: 1
kind: stuck
hint: rank 1, state D|uninterruptible|kernel|file system|I/O
needs: disk
"""

import ctypes
import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def mount(place: Path) -> int:
    """The descriptor of the server; the file system is there until it is closed."""
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"server", bytes(place), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    return server


def main() -> None:
    rank = os.environ["RANK"]
    place = Path(os.environ["CORPUS_DISK"], f"data-{rank}")
    place.mkdir()
    tr.init_process_group()
    server = mount(place) if rank == "1" else -1
    for _ in range(3):
        tr.all_reduce(np.ones(10))
    files = os.listdir(place)
    tr.all_reduce(np.array([len(files), server]))


main()
