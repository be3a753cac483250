"""Rank 0 prepares the dataset from a slow disk for longer than the others wait at the barrier.

nproc: 3
culprit: 0
kind: slow | missing  # it sleeps, which does not tell a slow disk from a rank that does not come
hint: tokenize
needs: torch
seconds: 45
"""

import time
from datetime import timedelta

import torch.distributed as dist

FILES = 400


def read_document(number):
    time.sleep(0.1)  # a file of a busy network disk
    return f"document {number} has a few words " * 20


def tokenize():
    vocabulary = {}
    for number in range(FILES):
        for word in read_document(number).split():
            vocabulary.setdefault(word, len(vocabulary))
    return vocabulary


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    prepared = dist.new_group(timeout=timedelta(seconds=8))
    if dist.get_rank() == 0:
        print(f"{len(tokenize())} words", flush=True)
    dist.barrier(prepared)
    dist.destroy_process_group()


main()
