"""Rank 2 still counts its words when the others check by a monitored barrier that all are there.

nproc: 3
culprit: 2
kind: slow | missing | stuck
hint: barrier
needs: torch
seconds: 60
"""

import time
from datetime import timedelta

import torch.distributed as dist


def count_words(lines):
    words = {}
    for number in range(lines):
        word = f"w{number * 7919 % 1009}"
        words[word] = words.get(word, 0) + 1
        if number % 1000 == 0:
            time.sleep(0.01)
    return words


def main():
    dist.init_process_group("gloo")
    lines = 30_000_000 if dist.get_rank() == 2 else 30_000
    words = count_words(lines)
    dist.monitored_barrier(timeout=timedelta(seconds=8), wait_all_ranks=True)
    print(len(words))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
