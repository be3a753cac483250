"""Models that a plan has cut, wrongly or in part; each function is one rank's part."""

from __future__ import annotations

from typing import Any

import torch
from support.ddp_faults import raised
from torch import nn
from torch.nn import functional

import torsh_runtime as tr

WIDTH, HEAD = 16, 4


class Attention(nn.Module):
    """With norms of queries and keys by head, and maybe fewer heads of keys and values."""

    def __init__(self, kv_heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, kv_heads * HEAD) for _ in range(2))
        self.q_norm, self.k_norm = nn.LayerNorm(HEAD), nn.LayerNorm(HEAD)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(inputs).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        query, key = self.q_norm(query), self.k_norm(key)
        if key.shape[1] == 1:
            key, value = (each.expand(query.shape) for each in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return inputs + self.out(mixed.transpose(1, 2).flatten(2))


def first_step(plan: dict[str, Any], kv_heads: int = 4, summed: tuple[str, ...] = ()) -> str:
    """What the first step raises. summed: parameters whose gradients are summed by hand."""
    mesh = tr.init_device_mesh({"tp": 2})
    model = tr.parallelize(nn.Sequential(Attention(kv_heads)), mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(1)
    model(torch.randn(2, 5, WIDTH)).square().mean().backward()
    for name, parameter in model.named_parameters():
        if name.endswith(summed):
            tr.all_reduce(parameter.grad, group=mesh.get_group("tp"))
    return raised(optimizer.step)


def steps(rank: int) -> dict[str, str]:
    column, row = tr.Column(unit=HEAD), tr.Row(unit=HEAD)
    plan: dict[str, Any] = {"0.[qkv]": column, "0.out": row}
    whole = {"0.q": column, "0.out": row}
    norms = ("q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias")
    return {
        "norms": first_step(plan),
        "norms in the plan": first_step({**plan, "0.[qk]_norm": tr.Part(1)}),
        "norms by hand": first_step(plan, summed=norms),
        "one head of keys": first_step({**whole, "0.q_norm": tr.Part(1)}, kv_heads=1),
    }


def states(rank: int) -> list[Any]:
    mesh = tr.init_device_mesh({"tp": 2})
    model = tr.parallelize(Attention(), mesh, {"[qkv]": tr.Column(unit=HEAD)})
    names = dict(model.named_parameters())
    whole, layer = model.state_dict(), model.q.state_dict()
    shapes = [tuple(each.shape) for each in (whole["q.weight"], layer["weight"])]
    return [shapes, names["q.weight"].shape[0]]
