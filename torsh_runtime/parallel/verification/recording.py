"""Records what a model computes: outputs of its modules, and gradients, as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.trees import leaves


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
