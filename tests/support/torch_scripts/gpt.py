"""A small GPT, trained as nanoGPT is, in each of these ways: `gpt.py [ddp] [compiled] [fsdp]`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 65, 32, 4, 2, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.attend(self.norms[0](x)).view(batch, length, 3, HEADS, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.think(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), targets.flatten())


def wrapped(kind: str) -> nn.Module:
    model = GPT()
    if kind == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    model = DistributedDataParallel(model)
    return torch.compile(model, backend="aot_eager") if kind == "compiled" else model


def main(kind: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(1337)
    model = wrapped(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(5):
        text = torch.randint(WORDS, (4, LENGTH + 1), generator=generator)
        loss = model(text[:, :-1], text[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print("loss", kind, step, rank, loss.item())


torch.set_num_threads(1)
dist.init_process_group("gloo")
for each in sys.argv[1:]:
    main(each)
dist.barrier()
dist.destroy_process_group()
