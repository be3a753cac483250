"""Records what a model computes, also one that is spread over ranks, and its dropout masks.

Outputs of modules and gradients become numpy arrays under the whole model's names. Dropout masks of
torch are compared here: they are equal on replicas, and different on parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.framework.trees import leaves
from torsh_runtime.layout import Piece
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.ddp import DistributedDataParallel
from torsh_runtime.parallel.fsdp.sharding import shardings_of
from torsh_runtime.parallel.fsdp.wrapper import FullyShardedDataParallel
from torsh_runtime.parallel.layouts import cut, layouts_by_id, part_of
from torsh_runtime.parallel.pipeline import Kind, PipelineParallel
from torsh_runtime.parallel.streams import draws
from torsh_runtime.parallel.verification.difference import Difference
from torsh_runtime.parallel.verification.placing import Place


class Key(NamedTuple):
    """Identifies one tensor among a module's outputs."""

    name: str
    """Name of the module."""
    call: int
    """Number of the module's call with a microbatch, from 0."""
    output: int
    """Number of the tensor among those that the call returned, from 0."""


class Pass(NamedTuple):
    """Tells which pass is being computed."""

    microbatch: int = 0
    is_again: bool = False
    """True if this is computed again, for the backward pass."""


Parts = dict[int, Any]
"""An array for each microbatch."""


@dataclass(slots=True)
class Recording:
    """Holds values of forward and backward passes, in the order of the computation."""

    outputs: dict[Key, Parts] = field(default_factory=dict)
    gradients: dict[Key, Parts] = field(default_factory=dict)
    """Gradients of the outputs."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Values before the passes."""
    of_parameters: dict[str, Any] = field(default_factory=dict)
    """Gradients of the parameters."""
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """A model whose passes are recorded."""

    model: Module
    modules: Mapping[str, Module]
    """Modules by name."""
    parameters: Mapping[str, Any]
    """Parameters by name."""
    present: Callable[[], Pass]


def record(watched: Watched, run: Callable[[], float | None]) -> Recording:
    """Record run(), which makes all passes and returns the loss."""
    found = Recording()
    for name, parameter in watched.parameters.items():
        found.parameters[name] = array_of(parameter)
    with ExitStack() as held:
        for name, module in watched.modules.items():
            _watch(held, found, name, module, watched)
        found.loss = run()
    for name, parameter in watched.parameters.items():
        gradient = parameter.grad
        if gradient is not None:
            found.of_parameters[name] = array_of(gradient)
    return found


def _watch(held: ExitStack, found: Recording, name: str, module: Any, watched: Watched) -> None:
    calls: dict[Pass, int] = {}
    framework = framework_of(watched.model)

    def note(_: Any, __: Any, returned: Any) -> None:
        if framework.in_backward():  # checkpointing calls the module again
            return
        present = watched.present()
        call = calls[present] = calls.get(present, -1) + 1
        for number, tensor in enumerate(tensors_in(returned)):
            key, at = Key(name, call, number), present.microbatch
            if not present.is_again:
                found.outputs.setdefault(key, {})[at] = array_of(tensor)
            if tensor.requires_grad:
                tensor.register_hook(partial(_keep, found, key, at))

    held.callback(module.register_forward_hook(note).remove)


def _keep(found: Recording, key: Key, microbatch: int, gradient: Any) -> None:
    found.gradients.setdefault(key, {}).setdefault(microbatch, array_of(gradient))


def tensors_in(value: Any) -> list[Any]:
    """Return the floating-point tensors within nested lists, tuples and dicts."""
    return [each for each in leaves(value) if hasattr(each, "requires_grad") and _is_float(each)]


def _is_float(tensor: Any) -> bool:
    return "float" in str(tensor.dtype) and "complex" not in str(tensor.dtype)


def array_of(tensor: Any) -> Any:
    """Copy a tensor to host memory, to float64 if it is of floating point."""
    values = getattr(tensor, "data", tensor)
    if hasattr(values, "detach"):  # torch's
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    elif hasattr(values, "get"):  # cupy's
        values = values.get()
    return np.array(values, np.float64 if _is_float(tensor) else None)


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
        parts = {key: p for each in shardings_of(self.module) for key, p in each.pieces().items()}
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

    The shape must be that of the piece's box, or of some of its rows.
    """
    if whole.shape != piece.global_shape:
        return None
    box = cut(whole, replace(piece, start=0, end=math.prod(piece.shape)))
    flat = box.reshape(-1)[piece.start : piece.end]
    if shape == box.shape and piece.is_box:
        return box
    are_rows = shape[1:] == box.shape[1:] and math.prod(shape) == flat.size
    return flat.reshape(shape) if are_rows else None


FEWEST = 64
"""Number of elements from which two masks are not equal by chance."""


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Keep a model from dropping anything within the block."""
    drops = [each for _, each in model.named_modules() if each.training and draws(each)]
    for module in drops:
        module.training = False
    try:
        yield
    finally:
        for module in drops:
            module.training = True


def masks_that_differ(
    spread: Spread, forward: Callable[[], object], place: Place, is_cut: Callable[[str], bool]
) -> list[Difference]:
    """Return the differences between masks of Dropout layers, if the model is of torch.

    Those of nn are compared like everything else.

    forward: calls the spread model. is_cut(name): whether ranks have parts of what that module
    returns.
    """
    if framework_of(spread.module).draws_for_whole or not any(place.of_all(bool(_drops(spread)))):
        return []
    own = _masks(spread, forward)
    everyone = place.of_all(own)
    found = []
    for name in own:
        for axis, ranks in place.along(place.group.rank).items():
            if axis in (*place.data_axes, place.stage_axis) or len(ranks) == 1:
                continue
            masks = [everyone[rank].get(name) for rank in ranks]
            text = _judged(masks, axis, is_cut(name))
            if text:
                found.append((name, text))
    return _of_all(found, place)


def _of_all(found: list[tuple[str, str]], place: Place) -> list[Difference]:
    first: dict[str, tuple[int, str]] = {}
    for rank, rows in enumerate(place.of_all(found)):
        for name, text in rows:
            first.setdefault(name, (rank, text))
    return [
        Difference(kind="mask", name=name, rank=rank, coordinate=place.told(rank), text=text)
        for name, (rank, text) in first.items()
    ]


def _judged(masks: list[Any], axis: str, is_cut: bool) -> str:
    """Return what is wrong with the masks of the ranks along an axis; "" if nothing is."""
    alike = all(each is not None and each == masks[0] for each in masks)
    if not is_cut and not alike:
        return f"differs between ranks along {axis}, which have to drop the same"
    if is_cut and alike and masks[0] is not None and len(masks[0]) >= FEWEST:
        return f"is the same on all ranks along {axis}, which have different parts"
    return ""


def _drops(spread: Spread) -> list[tuple[str, Any]]:
    """Return the names and the Dropout layers that drop something."""
    return [
        (name, module)
        for name, module in spread.modules.items()
        if module.training and hasattr(module, "p") and draws(module)
    ]


def _masks(spread: Spread, forward: Callable[[], object]) -> dict[str, bytes]:
    """Return what each Dropout layer drops in a forward pass, by its name."""
    found: dict[str, bytes] = {}
    with ExitStack() as held:
        for name, module in _drops(spread):
            held.callback(module.register_forward_hook(_noting(found, name)).remove)
        forward()
    return found


def _noting(found: dict[str, bytes], name: str) -> Callable[[Any, Any, Any], None]:
    def note(_: Any, given: Any, returned: Any) -> None:
        dropped = (array_of(returned) == 0) & (array_of(given[0]) != 0)
        found.setdefault(name, dropped.tobytes())

    return note
