"""Rank 0 sends its configuration to all; a generator in it cannot be pickled.

nproc: 2
culprit: 0
kind: exception
hint: TypeError|pickle
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr


def config() -> dict:
    return {
        "lr": 3e-4,
        "batch": 32,
        "stages": (2**i for i in range(5)),
        "name": "cosine",
    }


def main() -> None:
    tr.init_process_group(timeout=20)
    settings = [config() if os.environ["RANK"] == "0" else None]
    tr.broadcast_object_list(settings, 0)
    rate = np.array([settings[0]["lr"]])
    tr.all_reduce(rate, tr.ReduceOp.AVG)
    tr.destroy_process_group()


main()
