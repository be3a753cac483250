"""The script does not know an option.

culprit: 0 1
kind: usage
hint: arguments|options
"""

import argparse

import numpy as np

import torsh_runtime as tr


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    tr.init_process_group(timeout=30)
    for _ in range(options.epochs):
        tr.all_reduce(np.ones(4))


main()
