"""Gives a model that is spread over ranks, in any way, the names of the whole model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torsh_runtime.framework import Module
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.layout import Piece
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.ddp import DistributedDataParallel
from torsh_runtime.parallel.fsdp.wrapper import FullyShardedDataParallel, wrappers_of
from torsh_runtime.parallel.layouts import cut, layouts_by_id, part_of
from torsh_runtime.parallel.pipeline import Kind, PipelineParallel
from torsh_runtime.parallel.verification.recording import Pass, Watched

WRAPPERS = (DistributedDataParallel, FullyShardedDataParallel)


class Spread:
    """Describes a model that a plan has spread."""

    def __init__(self, made: Any, mesh: DeviceMesh) -> None:
        """Wrap what a plan returned. made: a module, or a PipelineParallel."""
        self.made, self._mesh = made, mesh
        self.pipeline = made if isinstance(made, PipelineParallel) else None
        self.module: Module = made.module if self.pipeline else made
        self._wrapped = [n for n, m in self.module.named_modules() if isinstance(m, WRAPPERS)]
        self.modules = dict(self._modules())
        named = all_parameters(self.module)
        self.parameters = {self._plain(name): each for name, each in named}

    def watched(self) -> Watched:
        """Return the modules and parameters for a recording."""
        return Watched(self.module, self.modules, self.parameters, self._present)

    def pieces(self) -> dict[str, Piece]:
        """Return this rank's piece of each parameter of the whole model."""
        layouts = layouts_by_id(self.module)
        parts = {key: p for each in wrappers_of(self.module) for key, p in each.pieces().items()}
        found = {}
        for name, parameter in self.parameters.items():
            shape = tuple(parameter.shape)
            part, layout = parts.get(id(parameter), Piece.whole(shape)), layouts.get(id(parameter))
            found[name] = part if layout is None else part_of(name, layout, self._mesh, part)
        return found

    def averaged(self) -> set[str]:
        """Return the names of parameters whose gradients a wrapper averages."""
        modules = [module for _, module in self.module.named_modules()]
        around = [each for module in modules for each in getattr(module, "parallel_wrappers", ())]
        wrapped = [each.module for each in (*modules, *around) if isinstance(each, WRAPPERS)]
        within = {id(parameter) for each in wrapped for parameter in each.parameters()}
        return {name for name, each in self.parameters.items() if id(each) in within}

    def set_gradients(self, arrays: Mapping[str, Any]) -> None:
        """Write these arrays into the gradients of the parameters with these names."""
        for name, array in arrays.items():
            gradient = self.parameters[name].grad
            is_tensor = hasattr(gradient, "new_tensor")
            gradient.data[...] = gradient.new_tensor(array) if is_tensor else array

    def _present(self) -> Pass:
        step = self.pipeline.present if self.pipeline else None
        if step is None:
            return Pass()
        return Pass(step.microbatch or 0, step.kind is not Kind.FORWARD)

    def _modules(self) -> Iterator[tuple[str, Any]]:
        """Yield modules that the whole model has too, except those within a part of a sum."""
        modules = [*self.module.named_modules()]
        summed = [f"{n}." for n, m in modules if getattr(m, "sums_parts", False)]
        for name, module in modules:
            if name.startswith(tuple(summed)):
                continue
            if name not in self._wrapped and not (self.pipeline and name == ""):
                yield self._plain(name), module

    def _plain(self, name: str) -> str:
        """Return the name without what wrappers add to it."""
        for path in reversed(self._wrapped):  # the innermost first
            before = f"{path}." if path else ""
            if f"{name}.".startswith(f"{before}module."):
                name = before + name[len(before) :].removeprefix("module").removeprefix(".")
                name = name.removesuffix(".")
        return name


def taken(whole: Any, piece: Piece, shape: tuple[int, ...]) -> Any | None:
    """Return the piece's elements of a whole array, in this shape; None if it does not fit.

    The shape must be that of the piece's box, or have all its elements along the first dimension.
    """
    if whole.shape != piece.global_shape:
        return None
    box = cut(whole, replace(piece, start=0, end=math.prod(piece.shape)))
    flat = box.reshape(-1)[piece.start : piece.end]
    if shape == box.shape and piece.is_box:
        return box
    return flat.reshape(shape) if shape[:1] == flat.shape and math.prod(shape[1:]) == 1 else None
