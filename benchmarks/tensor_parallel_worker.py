"""Runs one rank of tensor parallel steps: `tensor_parallel_worker.py PLAN.json`, by spawn.py.

The plan names the library that cuts the model: "ours", "gloo", which is torch's own on that
backend, "bare", which trains a rank's parts without communication, or "one", where rank 0 trains
the whole on as many threads as ranks while the others sleep. Each rank writes its figures to
`rank-<n>.json` beside the plan.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from timing import Probe, publish
from torch import nn
from torch.nn import functional
from torch_worker import join, measure

_CHECKED_STEPS = 3
_HEAD = 64
_COLUMNS, _ROWS = ("query", "key", "value", "up"), ("out", "down")
"""Layers of Block that are cut by columns and by rows."""
_SWIGLU = ("gate", "up"), ("down",)


class Block(nn.Module):
    """Implements attention and an MLP, as users write them. Of several parts it has the first."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        own = width // parts
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, own) for _ in range(3))
        self.out = nn.Linear(own, width)
        self.up, self.down = nn.Linear(width, 4 * own), nn.Linear(4 * own, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(x)
        heads = [
            layer(normed).unflatten(-1, (-1, _HEAD)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class SwiGLU(nn.Module):
    """Implements an MLP as in Llama. Of several parts it has the first."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        own = 8 * width // 3 // parts
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, own, bias=False) for _ in range(2))
        self.down = nn.Linear(own, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


Names = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of layers that are cut by columns and by rows."""


def by_ours(model: nn.Module, names: Names) -> None:
    import torsh_runtime as tr

    units = dict.fromkeys(("query", "key", "value", "out"), _HEAD)
    plan: dict[str, Any] = {f"*.{name}": tr.Column(unit=units.get(name, 1)) for name in names[0]}
    rows = {f"*.{name}": tr.Row(unit=units.get(name, 1)) for name in names[1]}
    tr.parallelize(model, None, plan | rows)


def by_torch(model: nn.Module, names: Names) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan: dict[str, Any] = {f"*.{name}": ColwiseParallel() for name in names[0]}
    parallelize_module(model, mesh, plan | {f"*.{name}": RowwiseParallel() for name in names[1]})


_CUT: dict[str, Callable[[nn.Module, Names], None]] = {"ours": by_ours, "gloo": by_torch}


def training_step(model: nn.Module, width: int, tokens: int) -> Callable[[], float]:
    """Return a function that does a step on the same tokens as all ranks, and returns its loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    data, target = torch.randn(1, tokens, width), torch.randn(1, tokens, width)

    def step() -> float:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def passes(model: nn.Module, width: int, rows: int, tokens: int) -> Callable[[], float]:
    """Return a function that does a forward and a backward pass, and returns the loss.

    All ranks use the same tokens.
    """
    torch.manual_seed(1)
    data, target = torch.randn(rows, tokens, width), torch.randn(rows, tokens, width)

    def both() -> float:
        model.zero_grad()
        loss = functional.mse_loss(model(data), target)
        loss.backward()
        return float(loss.detach())

    return both


def measured(plan: dict[str, Any], library: str) -> Callable[[], float]:
    """Return the function to time, for the model that the plan names."""
    shape = plan["shape"]
    is_swiglu = shape.get("model") == "SwiGLU"
    torch.manual_seed(0)
    parts = dist.get_world_size() if library == "bare" else 1
    kind: Any = SwiGLU if is_swiglu else Block
    model = nn.Sequential(*(kind(shape["width"], parts) for _ in range(shape["depth"])))
    if library in _CUT:
        _CUT[library](model, _SWIGLU if is_swiglu else (_COLUMNS, _ROWS))
    if "compiled" in plan["library"]:
        for each in model:
            each.compile(fullgraph=True)
    if is_swiglu:
        return passes(model, shape["width"], shape["rows"], shape["tokens"])
    return training_step(model, shape["width"], shape["tokens"])


def measure_alone(step: Callable[[], float], plan: dict[str, Any], probe: Probe) -> dict[str, Any]:
    """Measure rank 0 on as many threads as there are ranks, and return its figures on all ranks."""
    threads = dist.get_world_size()
    own = [dist.new_group([rank]) for rank in range(threads)]
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        torch.set_num_threads(threads)
        found[0] = measure(step, plan, Probe(None, Path(), 0), own[0])
    dist.broadcast_object_list(found)
    return {**found[0], "before_ns": probe.look(), "after_ns": probe.look()}


def main() -> None:
    path = Path(sys.argv[1])
    plan = json.loads(path.read_text())
    torch.set_num_threads(1)
    library = join(plan)
    step = measured(plan, library)
    losses = [step() for _ in range(_CHECKED_STEPS)]
    gc.disable()
    probe = Probe(plan["pingpong"], path.parent, dist.get_rank())
    timed = measure_alone if library == "one" else measure
    found = {"bytes": plan["sizes"][0], "losses": losses, **timed(step, plan, probe)}
    record = json.dumps({"rank": dist.get_rank(), "figures": [found]})
    publish(path.with_name(f"rank-{dist.get_rank()}.json"), record.encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
