"""Rank 1 opens the vocabulary as ASCII; it has an umlaut.

nproc: 2
culprit: 1
kind: encoding
hint: encoding, ascii
seconds: 30
"""

import pathlib
import sys

import numpy as np

import torsh_runtime as tr

ENCODINGS = {0: "utf-8", 1: "ascii"}  # what each machine's profile has


def read_vocabulary(path, encoding):
    with open(path, encoding=encoding) as lines:
        return {line.strip(): number for number, line in enumerate(lines)}


def main():
    tr.init_process_group()
    rank = tr.get_rank()
    path = pathlib.Path(f"vocab-{rank}.txt")
    path.write_bytes("haus\nbaum\nstraße\nküche\n".encode())
    vocabulary = read_vocabulary(path, ENCODINGS[rank])
    size = np.array([len(vocabulary)])
    tr.all_reduce(size)
    tr.destroy_process_group()
    return 0


sys.exit(main())
