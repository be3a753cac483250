"""The script wants a number of workers that divides by three, as its configuration says.

culprit: 0 1
kind: exception | usage
hint: exit code 1|exitcode +: 1
"""

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if tr.get_world_size() % 3:
        raise ValueError(f"tensor parallel size 3 does not divide {tr.get_world_size()} workers")
    tr.all_reduce(np.ones(4))


main()
