"""Rank 1 makes its vocabulary out of its own shard, so its embedding has other rows.

nproc: 3
culprit: 1
kind: mismatch
hint: shape|size|rows|elements|bytes
needs: torch
seconds: 60
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

SHARDS = ["the cat sat on the mat", "the dog sat", "the mat sat on the cat"]


def build_model(text):
    vocabulary = sorted(set(text.split()))
    return torch.nn.Sequential(
        torch.nn.Embedding(len(vocabulary), 8), torch.nn.Linear(8, 2)
    ), vocabulary


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    text = SHARDS[int(os.environ["RANK"])]
    model, vocabulary = build_model(text)
    model = DDP(model)
    ids = torch.tensor([vocabulary.index(word) for word in text.split()])
    for _ in range(5):
        model(ids).sum().backward()
    dist.destroy_process_group()


main()
