"""Rank 1 tokenizes a document hundreds of times the size of the others'.

nproc: 2
culprit: 1
kind: slow
hint: tokenize|slow|busy|running|late
needs: torch
seconds: 70
"""

import random
from datetime import timedelta

import torch
import torch.distributed as dist


def tokenize(text):
    tokens = []
    for start in range(len(text)):
        word = text[start : start + 3]
        if word not in tokens[-2000:]:
            tokens.append(word)
    return tokens


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    corpus = ["a b c " * 20] * 4
    if rank == 1:
        corpus[2] = "".join(map(chr, random.Random(0).choices(range(97, 5000), k=3_000_000)))
    for document in corpus:
        count = torch.tensor(float(len(tokenize(document))))
        dist.all_reduce(count)
        print(f"rank {rank}: {count.item():.0f} tokens", flush=True)
    dist.destroy_process_group()


main()
