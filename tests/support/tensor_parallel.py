"""Models of which ranks have parts beside one process; each function one rank's part."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import optim
from torsh_runtime.layout import TensorLayout
from torsh_runtime.parallel.layouts import cut, layouts_of

STEPS, ROWS, LENGTH, WIDTH, HEAD, CLASSES = 3, 2, 12, 18, 3, 23
SMOOTHING = 0.125
"""Exact in float32, to which torch rounds it in its backward pass."""
Plan = Mapping[str, Any]
SPREAD: Plan = {
    "tokens": tr.Vocabulary(),
    "blocks.*.[qkv]": tr.Column(unit=HEAD),
    "blocks.*.out": tr.Row(unit=HEAD),
    "blocks.*.up": tr.Column(),
    "blocks.*.down": tr.Row(),
    "head": tr.Column(),
}
SEQUENCE: Plan = {
    "tokens": tr.Vocabulary(sequence_dim=-2),
    "positions": tr.Part(-2),
    "blocks.*.norm?": tr.Part(-2),
    "blocks.*.[qkv]": tr.Column(unit=HEAD, sequence_dim=-2),
    "blocks.*.out": tr.Row(unit=HEAD, sequence_dim=-2),
    "blocks.*.up": tr.Column(sequence_dim=-2),
    "blocks.*.down": tr.Row(sequence_dim=-2),
    "norm": tr.Part(-2),
    "dropout": tr.Part(-2),
    "head": tr.Column(sequence_dim=-2),
}


class Kit:
    """What differs between torch and nn here."""

    def __init__(self, framework: str) -> None:
        self.name, self.is_torch = framework, framework == "torch"
        home = "torch" if self.is_torch else "torsh_runtime"
        self.nn: Any = importlib.import_module(f"{home}.nn")
        self.F: Any = importlib.import_module(f"{home}.nn.functional")
        self.torch: Any = importlib.import_module("torch") if self.is_torch else None
        self.device = "cpu"

    def seed(self, seed: int) -> None:
        (self.torch if self.is_torch else self.nn).manual_seed(seed)

    def double(self, model: Any) -> Any:
        made = model.double() if self.is_torch else model.to("float64")
        return made if self.device == "cpu" else made.to(self.device)

    def tensor(self, array: Any) -> Any:
        made = (self.torch.from_numpy if self.is_torch else self.nn.from_numpy)(np.array(array))
        return made if self.device == "cpu" else made.to(self.device)

    def adamw(self, model: Any, over: Any = None) -> Any:
        """over: part of a mesh, over which its state is spread."""
        kind: Any = self.torch.optim.AdamW if self.is_torch else optim.AdamW
        options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
        if over is None:
            return kind(model.parameters(), **options)
        options |= {"model": model, "process_group": over}
        return tr.DistributedOptimizer(model.parameters(), kind, **options)

    def checkpoint(self, call: Callable[..., Any], *inputs: Any) -> Any:
        if not self.is_torch:
            return self.nn.checkpoint(call, *inputs)
        checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
        return checkpoint(call, *inputs, use_reentrant=False)


@cache
def kit(framework: str) -> Kit:
    return Kit(framework)


def gpt(tools: Kit, dropout: float = 0.0, ties: bool = True, checkpoints: bool = False) -> Any:
    """A small one as users write it, in float64."""
    nn, functional = tools.nn, tools.F

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)
            self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
            self.v, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 31), nn.Linear(31, WIDTH)

        def forward(self, x: Any) -> Any:
            normed = self.norm1(x)
            heads = [self.heads(layer(normed)) for layer in (self.q, self.k, self.v)]
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            mixed = mixed.transpose(-3, -2)
            x = x + self.out(mixed.reshape(*mixed.shape[:-2], -1))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

        def heads(self, x: Any) -> Any:
            return x.reshape(*x.shape[:-1], -1, HEAD).transpose(-3, -2)

    class GPT(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(CLASSES, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.dropout = nn.Dropout(dropout)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
            if ties:
                self.head.weight = self.tokens.weight

        def forward(self, indices: Any) -> Any:
            places = tools.tensor(np.arange(indices.shape[-1]))
            x = self.dropout(self.tokens(indices) + self.positions(places))
            for block in self.blocks:
                x = tools.checkpoint(block, x) if checkpoints else block(x)
            return self.head(self.norm(x))

    tools.seed(0)
    return tools.double(GPT())


def batches() -> Iterator[tuple[Any, Any]]:
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        indices = random.integers(CLASSES, size=(ROWS, LENGTH))
        targets = random.integers(CLASSES, size=(ROWS, LENGTH))
        targets[0, :3] = -100
        yield indices, targets


Loss = Callable[[Any, Any], Any]


def whole_loss(tools: Kit) -> Loss:
    def loss(scores: Any, targets: Any) -> Any:
        flat = scores.reshape(-1, CLASSES), targets.reshape(-1)
        return tools.F.cross_entropy(*flat, label_smoothing=SMOOTHING)

    return loss


def cut_loss(scores: Any, targets: Any) -> Any:
    return tr.vocab_parallel_cross_entropy(
        scores, targets, num_classes=CLASSES, label_smoothing=SMOOTHING
    )


def train(
    tools: Kit, model: Any, loss: Loss, clip: Callable[[Any], float] | None = None
) -> dict[str, Any]:
    """Losses, or norms of gradients that are clipped, the first step's gradients, and the
    parameters after all."""
    optimizer, losses, gradients = tools.adamw(model), [], {}
    tools.seed(5)
    for indices, targets in batches():
        found = loss(model(tools.tensor(indices)), tools.tensor(targets))
        optimizer.zero_grad()
        found.backward()
        losses.append(found.item() if clip is None else clip(model))
        gradients = gradients or {n: plain(p.grad).copy() for n, p in model.named_parameters()}
        optimizer.step()
    parameters = {name: plain(each).copy() for name, each in model.named_parameters()}
    return {"losses": np.array(losses), "gradients": gradients, "parameters": parameters}


def plain(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def part_of(whole: Any, layout: TensorLayout | None, rank: int) -> Any:
    return whole if layout is None else cut(whole, layout.piece({"tp": rank}))


def farthest(
    model: Any, found: dict[str, Any], expected: dict[str, Any], rank: int
) -> dict[str, Any]:
    """How far this rank's results are from those of one process, and its replicas' bits."""
    lie = layouts_of(model)
    apart = {"losses": float(np.abs(found["losses"] - expected["losses"]).max())}
    for kind in ("gradients", "parameters"):
        assert list(found[kind]) == list(expected[kind])
        for name, value in found[kind].items():
            wanted = part_of(expected[kind][name], lie.get(name), rank)
            assert value.shape == wanted.shape, name
            apart[f"{kind} {name}"] = float(np.abs(value - wanted).max())
    bits = {
        f"{kind} {name}": value.tobytes()
        for kind in ("gradients", "parameters")
        for name, value in found[kind].items()
        if name not in lie
    }
    return {"apart": apart, "bits": {**bits, "losses": found["losses"].tobytes()}}


def beside_one_process(framework: str, plan: Plan, rank: int, **options: Any) -> dict[str, Any]:
    tools = kit(framework)
    expected = train(tools, gpt(tools, **options), whole_loss(tools))
    model = tr.parallelize(gpt(tools, **options), None, plan)
    return farthest(model, train(tools, model, cut_loss), expected, rank)


def on_mesh(framework: str, rank: int) -> dict[str, Any]:
    """Two replicas of two parts each, whose gradients are clipped, beside one process that has the
    batches of both."""
    tools, mesh = kit(framework), tr.init_device_mesh((2, 2), ("dp", "tp"))
    index = mesh.get_local_rank("dp")
    rows = slice(index, index + 1)

    def counted(targets: Any) -> Any:
        return tools.tensor(plain(targets) % CLASSES)  # as many on each replica

    def own_loss(scores: Any, targets: Any) -> Any:
        own = counted(targets)[rows]
        return tr.vocab_parallel_cross_entropy(scores, own, mesh["tp"], num_classes=CLASSES)

    def all_loss(scores: Any, targets: Any) -> Any:
        return tools.F.cross_entropy(scores.reshape(-1, CLASSES), counted(targets).reshape(-1))

    whole, cut = gpt(tools), tr.parallelize(gpt(tools), mesh, SPREAD)
    wrapped = tr.DistributedDataParallel(cut, process_group=mesh["dp"])

    def clipped(model: Any) -> float:
        return tr.clip_grad_norm_(model, 0.1)

    def clipped_on_mesh(model: Any) -> float:
        return tr.clip_grad_norm_(model, 0.1, mesh)

    expected = train(tools, whole, all_loss, clipped)
    norm = np.sqrt(sum((each**2).sum() for each in expected["gradients"].values()))
    assert np.isclose(norm, 0.1, rtol=1e-5)
    forward = cut.forward
    cut.forward = lambda indices: forward(indices[rows])
    found = train(tools, wrapped, own_loss, clipped_on_mesh)
    for kind in ("gradients", "parameters"):
        found[kind] = {name.removeprefix("module."): each for name, each in found[kind].items()}
    return farthest(cut, found, expected, mesh.get_local_rank("tp"))
