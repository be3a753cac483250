"""A slip in the script.

culprit: 0 1
kind: syntax
hint: Python, line|slip|parse|read
"""

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    if tr.get_rank() == 0
        print("begins")
    tr.all_reduce(np.ones(4))


main()
