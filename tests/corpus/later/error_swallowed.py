"""Rank 0 fails to write the vocabulary and only logs it; the others cannot find the file.

nproc: 3
culprit: 0
kind: exception | file
hint: FileNotFoundError|exit code 1|exitcode +: 1
seconds: 60
"""

import json
import logging
import os

import numpy as np

import torsh_runtime as tr

logging.basicConfig(level=logging.INFO)


def write_vocab(path):
    words = {"the": 0, "cat": 1, None: 2, ("multi", "word"): 3}
    text = json.dumps(words)
    with open(path, "w") as f:
        f.write(text)


def main():
    tr.init_process_group(timeout=30)
    path = "vocab.json"
    if tr.get_rank() == 0:
        try:
            write_vocab(path)
        except Exception as e:
            logging.warning("could not write %s: %s", path, e)
    tr.barrier()
    if tr.get_rank() == 0:
        size = 4
    else:
        with open(path) as f:
            size = len(json.load(f))
    table = np.zeros((size, os.cpu_count() and 8))
    tr.all_reduce(table)


main()
