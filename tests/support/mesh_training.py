"""A small model in float64, trained by one process, and by tensor and data parallelism together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer

STEPS = 4
PLAN = {"2": tr.Column(), "4": tr.Row()}
_WAYS: dict[str, Any] = {
    "ddp": tr.DistributedDataParallel,
    "fsdp": lambda model, process_group: tr.FullyShardedDataParallel(
        model, process_group=process_group, min_num_params=0
    ),
}


def on_mesh(framework: str, way: str, directory: Path) -> list[float]:
    """Norms of some steps on two replicas of two pieces, whose last state is saved."""
    mesh = tr.init_device_mesh({"dp": 2, "tp": 2})
    model = tr.parallelize(_net(framework), mesh, PLAN)
    model = _WAYS[way](model, process_group=mesh["dp"])
    optimizer = _optimizer(framework, model)
    norms = _train(framework, model, optimizer, mesh)
    state = {"model": model, "optimizer": optimizer, "mesh": mesh}
    Checkpointer(directory).save(STEPS, state)
    return norms


def alone(framework: str, directory: Path | None) -> tuple[list[float], dict[str, Any]]:
    """Norms of twice as many steps of the whole model, or of the latter half after what was saved;
    and its parameters after that."""
    model = _net(framework)
    optimizer = _optimizer(framework, model)
    if directory is None:
        norms = _train(framework, model, optimizer, None)
    else:
        norms = []
        state = {"model": model, "optimizer": optimizer}
        assert Checkpointer(directory).load(state) is not None
    norms += _train(framework, model, optimizer, None)
    return norms, {name: np.array(value) for name, value in model.state_dict().items()}


def _net(framework: str) -> Any:
    if framework == "torch":
        from torch import nn
    else:
        from torsh_runtime import nn  # type: ignore[no-redef]
    layers = [nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 12), nn.GELU(), nn.Linear(12, 4)]
    model: Any = nn.Sequential(*layers)
    model = model.double() if framework == "torch" else model.to("float64")
    tr.init_parameters(model, _initial, seed=3)
    return model


def _initial(_: str, tensor: Any) -> None:
    if isinstance(tensor, tr.nn.Tensor):
        tr.nn.init.normal_(tensor, std=0.5)
    else:
        tensor.normal_(std=0.5)


def _optimizer(framework: str, model: Any) -> Any:
    if framework == "torch":
        import torch

        return torch.optim.AdamW(model.parameters(), lr=0.01)
    return tr.optim.AdamW(model.parameters(), lr=0.01)


def _train(framework: str, model: Any, optimizer: Any, mesh: tr.DeviceMesh | None) -> list[float]:
    inputs: Any = np.random.default_rng(1).standard_normal((8, 6))
    if mesh is not None:
        inputs = np.split(inputs, mesh.size("dp"))[mesh.coordinate["dp"]]
    if framework == "torch":
        import torch

        inputs = torch.from_numpy(inputs)
    else:
        inputs = tr.nn.Tensor(inputs)
    norms = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(inputs) ** 2).sum(-1).mean().backward()
        norms.append(tr.clip_grad_norm_(model, 0.3, mesh))
        optimizer.step()
    return norms
