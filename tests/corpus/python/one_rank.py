"""A sample without a label, in the part of the data that rank 2 has.

nproc: 4
culprit: 2
kind: exception
hint: exit code 1|exitcode +: 1
"""

import os

import numpy as np

import torsh_runtime as tr

RANK = int(os.environ["RANK"])


def label(sample: dict[str, int]) -> int:
    return sample["label"]


def main() -> None:
    tr.init_process_group(timeout=30)
    samples = [{"label": 1}, {"label": 0}, {"id": 7} if RANK == 2 else {"label": 1}]
    for sample in samples:
        tr.all_reduce(np.array([label(sample)]))


main()
