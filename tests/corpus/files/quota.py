"""The user's quota is used up while rank 2 writes its part of the checkpoint.

The error is raised by hand: quotas need a file system that has them.

nproc: 3
culprit: 2
kind: disk
hint: disk|space, quota
"""

import errno
import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def save(path: Path, part: np.ndarray) -> None:
    if os.environ["RANK"] == "2":
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))
    path.write_bytes(part.tobytes())


def main() -> None:
    tr.init_process_group(timeout=30)
    part = np.zeros(1000)
    tr.all_reduce(part)
    save(Path(f"part-{os.environ['RANK']}.bin"), part)
    tr.barrier()


main()
