"""Rank 0 waits for ever for a lock file that a killed job has left in the build directory.

The other ranks wait for its extension at a barrier, and give up first.

nproc: 2
culprit: 0
kind: stuck
hint: lock|file_baton|wait
needs: torch
seconds: 45
"""

import signal
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.utils.file_baton import FileBaton


def build_extension(directory):
    """As torch.utils.cpp_extension does it: one process builds, those that come later wait."""
    baton = FileBaton(str(Path(directory, "lock")))
    if baton.try_acquire():
        Path(directory, "fused_adam.so").touch()
        baton.release()
    else:
        baton.wait()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    built = dist.new_group(timeout=timedelta(seconds=8))
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "lock").touch()  # of a job that was killed while it compiled
            build_extension(directory)
    dist.barrier(built)
    dist.destroy_process_group()


main()
