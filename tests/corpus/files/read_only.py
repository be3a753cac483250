"""The file system was remounted read-only after an error of its disk.

culprit: 0
kind: disk | permission | file
hint: read-only
needs: disk
"""

import os
import subprocess
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    disk = os.environ["CORPUS_DISK"]
    for step in range(5):
        tr.all_reduce(np.ones(4))
        if os.environ["RANK"] == "0":
            if step == 2:
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            Path(disk, f"step-{step}").write_text("0.5")


main()
