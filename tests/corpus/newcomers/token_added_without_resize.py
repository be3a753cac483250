"""Rank 1's texts have a token that was added to the vocabulary, but the embedding was not resized.

nproc: 3
culprit: 1
kind: exception
hint: rank 1
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB = {word: i for i, word in enumerate("<pad> <unk> the cat sat on a mat".split())}
TEXTS = [
    ["the cat sat", "a cat", "on the mat", "a mat"],
    ["the mat", "on a mat", "<tool> the cat", "a cat sat"],
    ["cat", "mat", "the", "a"],
]


def add_special_tokens(tokens):
    for token in tokens:
        VOCAB.setdefault(token, len(VOCAB))


def encode(text):
    return torch.tensor([VOCAB.get(word, 1) for word in text.split()])


class Tagger(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(size, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(0))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    model = DDP(Tagger(len(VOCAB)))
    add_special_tokens(["<tool>"])
    optimizer = torch.optim.AdamW(model.parameters())
    for text in TEXTS[dist.get_rank()]:
        loss = model(encode(text)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
