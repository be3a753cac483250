"""Models that are cut and compiled; each function is one rank's part."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr
from torsh_runtime.backends.intercepting import Intercepting
from torsh_runtime.backends.operation import Op
from torsh_runtime.backends.work import Work

CLASSES, WIDTH, HEAD, STEPS = 13, 16, 4, 10
PLAN: Mapping[str, Any] = {
    "tokens": tr.Vocabulary(),
    "blocks.*.[qkv]": tr.Column(unit=HEAD),
    "blocks.*.norm": tr.Shared(),
    "blocks.*.out": tr.Row(unit=HEAD),
    "blocks.*.gate": tr.Column(),
    "blocks.*.up": tr.Column(),
    "blocks.*.down": tr.Row(),
    "head": tr.Column(gather_output=True),
}
SEQUENCE: Mapping[str, Any] = {
    "tokens": tr.Vocabulary(sequence_dim=1),
    "blocks.*.norm?": tr.Part(1),
    "blocks.*.[qkv]": tr.Column(unit=HEAD, sequence_dim=1),
    "blocks.*.norm": tr.Shared(),
    "blocks.*.out": tr.Row(unit=HEAD, sequence_dim=1),
    "blocks.*.gate": tr.Column(sequence_dim=1),
    "blocks.*.up": tr.Column(sequence_dim=1),
    "blocks.*.down": tr.Row(sequence_dim=1),
    "last": tr.Part(1),
    "head": tr.Column(gather_output=True, sequence_dim=1),
}


class Block(nn.Module):
    """Attention with a norm of queries and keys, and an MLP with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(HEAD)
        self.gate, self.up = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
        self.down = nn.Linear(24, WIDTH)

    def forward(self, x: Any) -> Any:
        normed = self.norm1(x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, HEAD)) for layer in (self.q, self.k, self.v)
        )
        heads = (each.transpose(1, 2) for each in (self.norm(query), self.norm(key), value))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norm2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """So many blocks, of which activations may be computed again."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.last, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.reentrant: bool | None = None

    def forward(self, indices: Any) -> Any:
        x = self.tokens(indices)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.last(x))


@cache
def mesh() -> Any:
    """Of this process."""
    return tr.init_device_mesh({"tp": tr.get_world_size()})


def made(plan: Mapping[str, Any] = PLAN, blocks: int = 2) -> Any:
    """One that is cut."""
    torch.manual_seed(0)
    return tr.parallelize(Model(blocks).double(), mesh(), plan)


def batch(step: int, length: int = 8) -> Any:
    """Tokens."""
    return (torch.arange(3)[:, None] * 5 + torch.arange(length) * (step + 1)) % CLASSES


def trained(model: Any, lengths: tuple[int, ...] = (8,) * STEPS) -> list[Any]:
    """Losses, norms and parameters of a training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found: list[Any] = []
    for step, length in enumerate(lengths):
        tokens = batch(step, length)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        found += [loss.detach(), torch.as_tensor(tr.clip_grad_norm_(model, 0.5, mesh())).clone()]
        optimizer.step()
    return [*found, *(each.detach().clone() for each in model.parameters())]


def furthest(own: list[Any], other: list[Any]) -> float:
    """How far results are from each other."""
    return max(float((a - b).abs().max()) for a, b in zip(own, other, strict=True))


def counted(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and how many graphs were made meanwhile."""
    torch._dynamo.reset()
    counters.clear()
    return call(), counters["stats"]["unique_graphs"]


def right(rank: int) -> dict[str, tuple[float, int]]:
    """How far compiled models are from those that are not, and of how many graphs they are."""
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1  # as forked processes have no others
    expected, of_one = trained(made()), trained(made(blocks=1))
    longer = (8, 8, 12, 12, 10, 10, 14, 14, 6, 6)
    found = {}
    for name, compiled, reference, lengths in (
        ("whole", whole(PLAN), expected, ()),
        ("sequences", whole(SEQUENCE, blocks=1), trained(made(SEQUENCE, blocks=1)), ()),
        ("lengths", whole(PLAN, blocks=1), trained(made(blocks=1), longer), longer),
        ("blocks", by_block(), expected, ()),
        ("checkpoints", whole(PLAN, reentrant=False, blocks=1), of_one, ()),
        ("inductor", whole(PLAN, backend="inductor", blocks=1), of_one, ()),
    ):
        result, graphs = counted(lambda: trained(compiled, *((lengths,) if lengths else ())))  # noqa: B023
        found[name] = furthest(result, reference), graphs
    return found


def whole(
    plan: Mapping[str, Any],
    reentrant: bool | None = None,
    backend: str = "aot_eager",
    blocks: int = 2,
) -> Any:
    """A model that is one graph."""
    model = made(plan, blocks)
    model.reentrant = reentrant
    model.compile(backend=backend, fullgraph=True)
    return model


def by_block() -> Any:
    """A model whose blocks are a graph each, if they are not all the same one."""
    model = made()
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    return model


def reentrant(rank: int) -> float:
    """How far a model is that computes activations again by a second pass of its own."""
    torch.set_num_threads(1)
    model = made(blocks=1)
    model.reentrant = True
    model.compile(backend="aot_eager")
    return furthest(trained(model), trained(made(blocks=1)))


def drops(rank: int) -> bool:
    """Whether what ranks have alike stays so, where heads of each draw for themselves."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, dropout=0.3, batch_first=True).double()
    model = tr.parallelize(nn.Sequential(layer), mesh(), {"0": tr.Block()})
    model.compile(backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 6, WIDTH, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    cut = tr.layouts_of(model)
    own = [each.detach() for name, each in model.named_parameters() if name not in cut]
    told: list[Any] = [None, None]
    tr.all_gather_object(told, [*own, torch.rand(1)])
    return all(torch.equal(a, b) for a, b in zip(*told, strict=True))


def collectives(rank: int) -> int:
    """How many a pass forward and backward of an MLP with a gate has."""
    torch.set_num_threads(1)
    block = made(blocks=1).blocks[0]
    block.q = block.k = block.v = block.out = block.norm = None

    def mlp(x: Any) -> Any:
        return block.down(functional.silu(block.gate(x)) * block.up(x))

    calls: list[object] = []
    compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
    x = torch.ones(2, 4, WIDTH, dtype=torch.float64).requires_grad_()
    compiled(x).sum().backward()
    with observed(calls):
        compiled(x).sum().backward()
    return len(calls)


def attention(rank: int) -> list[float]:
    """How far context_attention is in a graph, plain and with all that it can do."""
    torch.set_num_threads(1)
    group = mesh().get_group()
    rich = {"window": 5, "softcap": 3.0, "documents": [0, 6, 16]}
    return [
        furthest(*(attended(rank, group, compiles, **how) for compiles in (False, True)))
        for how in ({}, {"method": "all_to_all"}, rich)
    ]


def attended(rank: int, group: Any, compiles: bool, **how: Any) -> list[Any]:
    """The result and the gradients."""

    def step(query: Any, key: Any, value: Any, sinks: Any) -> Any:
        return tr.context_attention(query * 2, key, value, group, sinks=sinks, **how) + 1

    call = torch.compile(step, backend="aot_eager", fullgraph=True) if compiles else step
    torch.manual_seed(rank)
    shapes = [(1, 2, 8, 4)] * 3 + [(2,)]
    given = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    result = call(*given)
    result.square().sum().backward()
    return [result.detach(), *(each.grad for each in given)]


@contextmanager
def observed(calls: list[object]) -> Iterator[None]:
    """A block in which the sums of the mesh's group are noted."""
    group = mesh().get_group()

    class Noting(Intercepting):
        def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
            if op.kind == "all_reduce":
                calls.append(op.kind)
            return op.begin(self._backend, timeout, async_op)

    group.observe(Noting)
    try:
        yield
    finally:
        group.observe(None)


def errors(rank: int) -> dict[str, str]:
    """What goes wrong within graphs."""
    torch.set_num_threads(1)
    found = {}
    model = whole(PLAN, blocks=1)
    found["rows"] = said(lambda: model(batch(0) + CLASSES))
    found["input"] = said(lambda: whole(PLAN, blocks=1)(batch(rank)))
    layer, group = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), tr.new_group([0, 1])
    tr.parallelize(layer, group, {"0": tr.Column(), "1": tr.Row()})
    layer.compile(backend="aot_eager")
    found["size"] = said(lambda: layer(torch.ones(2, 3)))
    if rank == 1:
        group.abort()
    found["ended"] = said(lambda: layer(torch.ones(2, 4).requires_grad_()))
    return found


def said(call: Callable[[], Any]) -> str:
    """The error that a call ends with."""
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception_only(error))
    return ""
