"""The service that starts node 1's agent knows no HOME, where the cache should be.

nproc: 1
nnodes: 2
culprit: 1
kind: exception | usage
hint: HOME|environment|node 1|rank 1
seconds: 60
"""

import os
import pathlib

import numpy as np

import torsh_runtime as tr


def environment_of_service():
    if os.environ["GROUP_RANK"] == "1":
        os.environ.pop("HOME", None)


def cache_folder():
    return pathlib.Path(os.environ["HOME"]) / ".cache" / "features"


def main():
    environment_of_service()
    tr.init_process_group()
    counts = np.ones(4)
    tr.all_reduce(counts)
    features = cache_folder() / "train.npy"
    data = np.load(features) if features.exists() else np.zeros(16)
    tr.all_reduce(data)
    tr.destroy_process_group()


main()
