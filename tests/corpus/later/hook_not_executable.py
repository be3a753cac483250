"""Rank 0 runs a hook after each epoch, which was copied without its execute bit.

nproc: 3
culprit: 0
kind: permission | exception | file
hint: PermissionError|permission|execut
seconds: 60
"""

import os
import subprocess

import numpy as np

import torsh_runtime as tr

HOOK = "./on_epoch_end.sh"


def on_epoch_end(epoch: int, loss: float) -> None:
    subprocess.run([HOOK, str(epoch), f"{loss:.4f}"], check=False)


def main() -> None:
    tr.init_process_group(timeout=30)
    rank = int(os.environ["RANK"])
    if rank == 0:
        with open(HOOK, "w") as f:
            f.write("#!/bin/sh\necho epoch $1 loss $2\n")
        os.chmod(HOOK, 0o644)
    for epoch in range(3):
        loss = np.array([0.5 / (epoch + 1)])
        tr.all_reduce(loss)
        if rank == 0:
            on_epoch_end(epoch, loss[0])


main()
