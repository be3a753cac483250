"""Two groups of the same ranks, used in different orders.

culprit: 0 | 1
kind: deadlock | mismatch
hint: group, order|all_reduce|barrier
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=4)
    data, model = tr.new_group([0, 1]), tr.new_group([0, 1])
    groups = [data, model] if os.environ["RANK"] == "0" else [model, data]
    for group in groups:
        tr.all_reduce(np.ones(10), group=group)


main()
