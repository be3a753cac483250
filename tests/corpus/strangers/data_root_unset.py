"""DATA_ROOT is not set for rank 1.

nproc: 2
culprit: 1
kind: exception
hint: rank 1, exit code 1|exited with 1|status 1
seconds: 30
"""

import os
import pathlib

import numpy as np

import torsh_runtime as tr

if os.environ["LOCAL_RANK"] == "0":
    os.environ["DATA_ROOT"] = os.getcwd()  # by a wrapper, for the first process only


def dataset_files():
    root = pathlib.Path(os.environ["DATA_ROOT"])
    return sorted(root.glob("*.bin"))


def main():
    tr.init_process_group()
    count = np.array([len(dataset_files())], dtype=np.int64)
    tr.all_reduce(count)
    print("files:", count[0])
    tr.destroy_process_group()


main()
