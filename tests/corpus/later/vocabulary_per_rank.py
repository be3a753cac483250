"""Each rank builds the vocabulary from its own shard; rank 1's lacks a word.

nproc: 3
culprit: 1
kind: mismatch
hint: shape|size|elements|parameter
needs: torch
seconds: 120
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SHARDS = ["a cat sat on a mat", "a cat sat on a cat", "on a mat sat a cat"]


class Tagger(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embed = nn.Embedding(words, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.embed(ids))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    text = SHARDS[dist.get_rank()].split()
    vocab = {word: i for i, word in enumerate(sorted(set(text)))}
    model = DDP(Tagger(len(vocab)))
    ids = torch.tensor([vocab[w] for w in text])
    for _ in range(3):
        model(ids).sum().backward()
    dist.destroy_process_group()


main()
