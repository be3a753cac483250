"""TMPDIR is so deep that multiprocessing's manager cannot make its socket there.

nproc: 2
culprit: none
kind: exception | limit | file
hint: OSError|EOFError|AF_UNIX|socket|path
needs: torch
seconds: 40
"""

import os
import tempfile
from datetime import timedelta
from multiprocessing import Manager

import torch.distributed as dist


def scratch() -> str:
    """Of this job's own, as the administrators want it."""
    name = (
        "project-speech-translation-2026/user-with-a-long-name/job-0000012345678/experiment-42/tmp"
    )
    path = os.path.join(tempfile.gettempdir(), name)
    os.makedirs(path, exist_ok=True)
    return path


def main() -> None:
    tempfile.tempdir = scratch()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    with Manager() as manager:
        progress = manager.dict()
        progress[dist.get_rank()] = 0
        dist.barrier()


if __name__ == "__main__":
    main()
