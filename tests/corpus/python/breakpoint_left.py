"""A breakpoint was left in the script, and there is no terminal.

culprit: 1
kind: exception
hint: breakpoint|debugger|BdbQuit|exit code 1|exitcode +: 1
"""

import os

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    for step in range(5):
        if step == 2 and os.environ["RANK"] == "1":
            breakpoint()
        tr.all_reduce(np.ones(4))


main()
