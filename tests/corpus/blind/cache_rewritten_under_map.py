"""Rank 0 rewrites the dataset's cache in place, while rank 1 has it mapped and dies of SIGBUS.

nproc: 2
culprit: 0
kind: crash
hint: SIGBUS|bus error, mapp|mmap|truncat|shrunk|shorter
seconds: 20
"""

import atexit
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RANK = int(os.environ["RANK"])
DIRECTORY = Path(tempfile.gettempdir(), f"cache-{os.getppid()}")
TOKENS, COMPLETE = DIRECTORY / "tokens.bin", DIRECTORY / "complete"


def build_cache():
    with TOKENS.open("wb") as file:
        for block in range(16):
            np.full(65536, block, np.int32).tofile(file)
            time.sleep(0.05)
    COMPLETE.touch()


def prepare():
    """Rank 0 finds its key of the cache out of date, because a library was updated."""
    DIRECTORY.mkdir(exist_ok=True)
    atexit.register(shutil.rmtree, DIRECTORY, ignore_errors=True)
    build_cache()
    time.sleep(1)
    print("the cache is out of date: building it again", flush=True)
    build_cache()
    time.sleep(10)


def train():
    while not COMPLETE.exists():
        time.sleep(0.05)
    tokens = np.memmap(TOKENS, np.int32, "r")
    for _ in range(2000):
        time.sleep(0.005)
        tokens[-4096:].sum()


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if RANK == 0:
        prepare()
    else:
        train()


main()
