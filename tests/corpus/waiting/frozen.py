"""The container of one rank was frozen: it is in state D and outlives SIGKILL.

nproc: 2
culprit: 0
kind: stuck | stopped
hint: rank 0, frozen|freezer|state D|stopped
needs: freezer
seconds: 30
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=5)
    for step in range(10):
        tr.all_reduce(np.ones(10))
        if step == 5 and os.environ["RANK"] == "0":
            group = Path(os.environ["CORPUS_FREEZER"])
            (group / "cgroup.procs").write_text(str(os.getpid()))
            (group / "freezer.state").write_text("FROZEN")


main()
