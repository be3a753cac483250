"""Experts with routers of the user's beside what one process computes; each function one rank's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from support.refusing import refused as refused_of
from torch import Tensor, nn
from torch.nn import functional

import torsh_runtime as tr
from torsh_runtime.parallel.layouts import cut

WIDTH, HIDDEN, EXPERTS, TOP_K = 6, 8, 4, 2
TOKENS = (5, 3)
"""Of each rank."""
Found = dict[str, Tensor]


class Router(nn.Module):
    """One that asks a function of its scores."""

    def __init__(self, choose: Callable[[Tensor, Tensor], tuple[Any, ...]]) -> None:
        super().__init__()
        self.choose = choose
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.register_buffer("bias", torch.linspace(-0.3, 0.3, EXPERTS))

    def forward(self, tokens: Tensor) -> tuple[Any, ...]:
        return self.choose(functional.linear(tokens, self.weight), self.bias)


def by_groups(logits: Tensor, bias: Tensor) -> tuple[Any, ...]:
    """Sigmoids, with a bias for the choice only, out of the better of two groups; scaled."""
    scores = logits.sigmoid()
    groups = (scores + bias).unflatten(-1, (2, -1))
    best = groups.sum(-1).argmax(-1, keepdim=True)
    told = groups.masked_fill(torch.arange(2)[:, None] != best[..., None], float("-inf"))
    chosen = told.flatten(-2).topk(TOP_K, -1)[1]
    weights = scores.gather(-1, chosen)
    return chosen, 2.5 * weights / weights.sum(-1, keepdim=True)


def after_choice(logits: Tensor, bias: Tensor) -> tuple[Any, ...]:
    """A softmax of what was chosen."""
    found, chosen = logits.topk(TOP_K, -1)
    return chosen, found.softmax(-1)


def as_they_are(logits: Tensor, bias: Tensor) -> tuple[Any, ...]:
    """A softmax before the choice, of which nothing is made to add up to 1, and all scores."""
    scores = logits.softmax(-1)
    weights, chosen = scores.topk(TOP_K, -1)
    return chosen, weights, scores


ROUTERS = {each.__name__: each for each in (by_groups, after_choice, as_they_are)}


class Gated(nn.Module):
    """An expert of all tokens, with a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.gate = nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.gate(tokens).sigmoid() * self.down(self.up(tokens).relu())
        return made


def layer(name: str, **options: Any) -> Any:
    """With the same values on all ranks."""
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    try:
        router, shared = Router(ROUTERS[name]), Gated()
        return tr.MixtureOfExperts(
            WIDTH, HIDDEN, EXPERTS, router=router, shared=shared, framework="torch", **options
        )
    finally:
        torch.set_default_dtype(torch.float32)


def of_one_process(name: str, tokens: Tensor) -> tuple[Found, Tensor]:
    """Gradients and results, of all experts for all tokens, and the balance."""
    mesh = tr.init_device_mesh((-1, 1), ("all", "one"))
    made = layer(name, mesh=mesh["one"])
    chosen, weights, *scores = made.router(tokens)
    dense = torch.zeros(len(tokens), EXPERTS, dtype=tokens.dtype).scatter(1, chosen, weights)
    hidden = functional.gelu(torch.einsum("th,eoh->teo", tokens, made.up))
    outputs = torch.einsum("teo,eho,te->th", hidden, made.down, dense) + made.shared(tokens)
    balance = torch.zeros((), dtype=tokens.dtype)
    if scores:
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS) / chosen.numel()
        balance = EXPERTS * (counts * scores[0].mean(0)).sum()
    (loss(outputs) / len(TOKENS) + balance * 0.3).backward()  # type: ignore[no-untyped-call]
    named = {key: each.grad for key, each in made.named_parameters()}
    return {**named, "outputs": outputs.detach()}, balance.detach()


def loss(outputs: Tensor) -> Tensor:
    """A sum over tokens."""
    return outputs.sin().sum()


def right(rank: int) -> dict[str, float]:
    """How far each is from one process, with tokens of each rank's own."""
    mesh = tr.init_device_mesh({"dp": 2}).view({"edp": 1, "ep": 2}, over=("dp",))
    every = torch.from_numpy(np.random.default_rng(1).normal(size=(sum(TOKENS), WIDTH)))
    own = every.split(TOKENS)[rank]
    found = {}
    for name in ROUTERS:
        expected, balance = of_one_process(name, every)
        made = layer(name, mesh=mesh["ep"], data=mesh["dp"])
        replica: Any = tr.DistributedDataParallel(made, process_group=mesh["dp"])
        outputs, told = replica(own)
        (loss(outputs) + told * 0.3).backward()
        pairs = [(outputs, expected["outputs"].split(TOKENS)[rank]), (told, balance)]
        pairs += _gradients(made, expected, mesh)
        found[name] = max(float((one - other).abs().max()) for one, other in pairs)
    return found


def right_of_parts(rank: int) -> dict[str, float]:
    """The same, with parts of the tokens of one batch."""
    mesh = tr.init_device_mesh({"dp": 1, "tp": 2}).view({"ep": 2}, over=("dp", "tp"))
    every = torch.from_numpy(np.random.default_rng(1).normal(size=(8, WIDTH)))
    found = {}
    for name in ROUTERS:
        expected, balance = of_one_process(name, every)
        made = layer(name, mesh=mesh["ep"], data=mesh["dp", "tp"], sequence=mesh["tp"])
        outputs, told = made(every.chunk(2)[rank])
        (loss(outputs) / len(TOKENS) + told * 0.3).backward()
        pairs = [(outputs, expected["outputs"].chunk(2)[rank]), (told, balance)]
        pairs += _gradients(made, expected, mesh)
        found[name] = max(float((one - other).abs().max()) for one, other in pairs)
    return found


def _gradients(made: Any, expected: Found, mesh: Any) -> list[tuple[Tensor, Tensor]]:
    lie, pairs = tr.layouts_of(made), []
    for name, each in made.named_parameters():
        wanted = expected[name]
        if name in lie:
            wanted = torch.from_numpy(cut(wanted.numpy(), lie[name].piece(mesh.coordinate)).copy())
        pairs.append((each.grad, wanted))
    return pairs


def dropped(rank: int) -> bool:
    """Whether what is no expert counts as an expert without weight."""
    mesh = tr.init_device_mesh({"dp": 2}).view({"edp": 1, "ep": 2}, over=("dp",))
    tokens, found = torch.arange(2.0 * WIDTH).view(2, WIDTH).sin(), []
    for others, weight in (((4, -1), 1.0), ((0, 0), 0.0)):
        chosen = torch.tensor([[0, others[0]], [3, others[1]]])
        given = chosen, torch.tensor([[1.0, weight], [1.0, weight]])
        torch.manual_seed(0)
        made: Any = tr.MixtureOfExperts(
            WIDTH,
            HIDDEN,
            EXPERTS,
            router=lambda _, given=given: given,
            mesh=mesh["ep"],
            framework="torch",
        )
        outputs, balance = made(tokens)
        assert float(balance) == 0.0
        found.append(outputs)
    return torch.equal(*found)


def refused(rank: int) -> dict[str, str]:
    """What routers are told that give something else."""
    mesh = tr.init_device_mesh({"dp": 2}).view({"edp": 1, "ep": 2}, over=("dp",))

    def run(*given: Tensor) -> None:
        torch.manual_seed(0)
        made: Any = tr.MixtureOfExperts(
            WIDTH, HIDDEN, EXPERTS, router=lambda x: given, mesh=mesh["ep"], framework="torch"
        )
        made(torch.ones(2, WIDTH))

    experts, weights = torch.zeros(2, 2, dtype=torch.long), torch.ones(2, 2)
    return refused_of(
        {
            "weights": lambda: run(experts, weights[:, :1]),
            "tokens": lambda: run(experts[:1], weights[:1]),
            "scores": lambda: run(experts, weights, weights),
        }
    )
