"""Models whose parameters have layouts, of either framework, and what is done with them on a mesh.

They compute nothing: a gradient is this rank's piece of a whole one that its name tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.checkpoint_training import everything

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.framework import framework_of
from torsh_runtime.layout import Piece, Placement, Shard
from torsh_runtime.parallel.fsdp.wrapper import FullyShardedDataParallel
from torsh_runtime.parallel.layouts import cut, layouts_by_id, piece_of

Sizes = Mapping[str, int]
BLOCKS = 4
WHOLE: Sizes = {"pp": 1, "dp": 1, "tp": 1}


class Told(NamedTuple):
    """One parameter: its whole shape, and how it lies along which axis of how many."""

    shape: tuple[int, ...]
    axis: str = "tp"
    placement: Any = None


def _uneven(dim: int, size: int, parts: int) -> Placement:
    cuts = [size * part * part // (parts * parts) for part in range(parts + 1)]
    return Shard.at(dim, cuts)


def _copied(parts: int) -> Placement:
    """Two heads, which are fewer than four ranks."""
    heads = min(parts, 2)
    own = [index * heads // parts for index in range(parts)]
    size = 4 // heads
    return Shard(0, parts=tuple(((at * size, (at + 1) * size),) for at in own))


BLOCK = {
    "norm.weight": Told((6,)),
    "qkv.weight": Told((16, 6), placement=lambda parts: Shard(0, (8, 4, 4))),
    "qkv.bias": Told((16,), placement=lambda parts: Shard(0, (8, 4, 4))),
    "out.weight": Told((6, 8), placement=lambda parts: Shard(1, (4, 4))),
    "key.weight": Told((4, 6), placement=_copied),
    "experts.weight": Told((5, 2, 3), "ep", lambda parts: Shard(0)),
}
OUTER = {"embed.weight": Told((7, 6), placement=lambda parts: _uneven(0, 7, parts))}


def on_mesh(sizes: Sizes, is_wrapped: bool) -> tr.DeviceMesh:
    """With experts over all ranks of a stage, or where they are sharded over dp over tp alone."""
    return tr.init_device_mesh(sizes).view({"ep": -1}, over=("tp",) if is_wrapped else ("dp", "tp"))


def net(framework: str, mesh: tr.DeviceMesh | None) -> Any:
    """This rank's stage; the embedding is of the first one and the last one, as a tied head."""
    stages, stage = (1, 0) if mesh is None else (mesh.size("pp"), mesh.get_local_rank("pp"))
    module, parameter = _kinds(framework)
    model = module()
    if stage in (0, stages - 1):
        _add(model, module, parameter, OUTER, mesh)
    blocks = module()
    for number in range(BLOCKS * stage // stages, BLOCKS * (stage + 1) // stages):
        block = module()
        _add(block, module, parameter, BLOCK, mesh)
        blocks.add_module(str(number), block)
    model.add_module("blocks", blocks)
    tr.init_parameters(model, initial, 5, mesh)
    return model


def _kinds(framework: str) -> tuple[Any, Any]:
    if framework == "torch":
        import torch

        return torch.nn.Module, lambda shape: torch.nn.Parameter(
            torch.empty(shape, dtype=torch.float64)
        )
    from torsh_runtime import nn

    return nn.Module, lambda shape: nn.Parameter(np.empty(shape))


def _add(
    owner: Any, module: Any, parameter: Any, told: Mapping[str, Told], mesh: tr.DeviceMesh | None
) -> None:
    for path, each in told.items():
        child, _, name = path.partition(".")
        home = dict(owner.named_children()).get(child) or module()
        owner.add_module(child, home)
        axes: Any = ()
        if mesh is not None and each.placement is not None:
            parts = mesh.size(each.axis)
            axes = ((each.axis, parts, each.placement(parts)),)
        layout = tr.TensorLayout(each.shape, axes)
        shape = piece_of(path, layout, mesh).shape
        home.register_parameter(name, parameter(shape))
        home.parameter_layouts = {**getattr(home, "parameter_layouts", {}), name: layout}


def initial(name: str, tensor: Any) -> None:
    """Random, from whatever stream there is."""
    if isinstance(tensor, tr.nn.Tensor):
        tr.nn.init.normal_(tensor)
    else:
        tensor.normal_()


def wrapped(model: Any, mesh: tr.DeviceMesh) -> Any:
    """Sharded over the replicas too."""
    return tr.FullyShardedDataParallel(
        model, process_group=mesh["dp"], auto_wrap_policy=tr.SizeBasedAutoWrap(100)
    )


def whole_gradient(name: str, shape: tuple[int, ...]) -> Any:
    """A parameter's, of the whole model."""
    seed = sum(ord(letter) * 31**at for at, letter in enumerate(name.replace("module.", "")))
    return np.random.default_rng(seed).standard_normal(shape)


def give_gradients(model: Any, mesh: tr.DeviceMesh | None) -> None:
    """To each parameter what is this rank's."""
    for name, parameter, piece in pieces(model, mesh):
        whole = whole_gradient(name, piece.global_shape)
        box = Piece.of_spans(piece.global_shape, [piece.spans_of(d) for d in range(whole.ndim)])
        own = np.ascontiguousarray(cut(whole, box)).reshape(-1)[piece.start : piece.end]
        own = own.reshape(tuple(parameter.shape))
        if isinstance(parameter, tr.nn.Tensor):
            parameter.grad = tr.nn.Tensor(own)
        else:
            import torch

            parameter.grad = torch.from_numpy(own.copy())


def pieces(model: Any, mesh: tr.DeviceMesh | None) -> Iterator[tuple[str, Any, Piece]]:
    """What this rank has of each parameter."""
    layouts = layouts_by_id(model)
    parts = model.pieces() if isinstance(model, FullyShardedDataParallel) else {}
    for name, parameter in model.named_parameters():
        piece = piece_of(name, layouts[id(parameter)], mesh)
        part = parts.get(id(parameter))
        yield name, parameter, piece if part is None else piece.part(part.start, part.end)


class Training:
    """A model and an optimizer which have taken some steps, that are the same on every mesh."""

    def __init__(self, framework: str, sizes: Sizes | None, is_wrapped: bool = False) -> None:
        self.mesh = None if sizes is None else on_mesh(sizes, is_wrapped)
        self.model = net(framework, self.mesh)
        if is_wrapped and self.mesh is not None:
            self.model = wrapped(self.model, self.mesh)
        self.optimizer = _optimizer(framework, self.model)
        self.state = {"model": self.model, "optimizer": self.optimizer, "on": self.mesh}
        if self.mesh is None:
            del self.state["on"]

    def step(self, times: int) -> None:
        for _ in range(times):
            give_gradients(self.model, self.mesh)
            self.optimizer.step()


def _optimizer(framework: str, model: Any) -> Any:
    groups = [
        {"params": [p for name, p in model.named_parameters() if "qkv" in name]},
        {"params": [p for name, p in model.named_parameters() if "qkv" not in name], "lr": 0.02},
    ]
    if framework == "torch":
        import torch

        return torch.optim.AdamW(groups, lr=0.01, foreach=False)
    return tr.optim.AdamW(groups, lr=0.01)


def save(framework: str, sizes: Sizes | None, is_wrapped: bool, directory: Path) -> None:
    """Train two steps and save."""
    training = Training(framework, sizes, is_wrapped)
    training.step(2)
    Checkpointer(directory).save(2, training.state)


def check_load(framework: str, sizes: Sizes | None, is_wrapped: bool, directory: Path) -> None:
    """Load into a model that has other values: everything is what one process has saved."""
    training = Training(framework, sizes, is_wrapped)
    give_gradients(training.model, training.mesh)
    assert Checkpointer(directory / "saved").load(training.state) is not None
    tensors, _ = everything(next((directory / "whole").glob("step-*")))
    for name, parameter, piece in pieces(training.model, training.mesh):
        known = name.replace("module.", "")
        state = training.optimizer.state[parameter]
        for key, kept in {
            f"model/{known}": parameter,
            f"optimizer/state/{known}/exp_avg": state["exp_avg"],
            f"optimizer/state/{known}/exp_avg_sq": state["exp_avg_sq"],
        }.items():
            box = Piece.of_spans(
                piece.global_shape, [piece.spans_of(d) for d in range(len(piece.shape))]
            )
            wanted = np.ascontiguousarray(cut(tensors[key], box)).reshape(-1)
            values = kept.data if hasattr(kept, "requires_grad") else kept
            own = framework_of(training.model).array(values.reshape(-1))
            assert own.tobytes() == wanted[piece.start : piece.end].tobytes(), key
        assert float(np.asarray(state["step"])) == 2


def check_clip(framework: str, sizes: Sizes | None, is_wrapped: bool) -> list[float]:
    """Norms, and that gradients are scaled by them."""
    training = Training(framework, sizes, is_wrapped)
    if is_wrapped:
        with pytest.raises(tr.ConfigError, match="clip_grad_norm_"):
            training.model.clip_grad_norm_(1.0)
        told = training.model.sharded_state_dict(training.mesh)
        assert {f"module.{name}": each.piece for name, each in told.items()} == {
            name: piece for name, _, piece in pieces(training.model, training.mesh)
        }
    found = []
    for kind in (2.0, 1.0, math.inf):
        give_gradients(training.model, training.mesh)
        norm = tr.clip_grad_norm_(training.model, 0.5, training.mesh, kind)
        found.append(norm)
        for name, parameter, piece in pieces(training.model, training.mesh):
            if piece.size:
                own = np.asarray(parameter.grad.data).reshape(-1)[0]
                number = next(piece.runs()).number
                whole = whole_gradient(name, piece.global_shape).reshape(-1)[number]
                np.testing.assert_allclose(own, whole * 0.5 / (norm + 1e-6), rtol=1e-12)
    return found


def whole_norms() -> list[float]:
    """Of the unsplit model."""
    named = {f"blocks.{n}.{name}": each for n in range(BLOCKS) for name, each in BLOCK.items()}
    told = {**OUTER, **named}
    flat = np.concatenate([whole_gradient(name, each.shape).ravel() for name, each in told.items()])
    return [float(np.linalg.norm(flat, kind)) for kind in (2, 1, np.inf)]
