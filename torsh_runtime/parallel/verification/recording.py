"""What a model computes: the outputs of its modules, and gradients, as arrays of numpy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.modules import ModuleAdapter
from torsh_runtime.modules.base import leaves


class Key(NamedTuple):
    """One tensor among a module's outputs."""

    name: str
    """The module's."""
    call: int
    """Which of its calls, from 0."""
    output: int
    """Which tensor of what it returned, from 0."""


@dataclass(slots=True)
class Recording:
    """Of one forward and backward pass. Its orders are those of the computation."""

    outputs: dict[Key, Any] = field(default_factory=dict)
    gradients: dict[Key, Any] = field(default_factory=dict)
    """Of the outputs."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Before the pass."""
    of_parameters: dict[str, Any] = field(default_factory=dict)
    """Their gradients."""


def record(
    adapter: ModuleAdapter[Any], prefix: str, inputs: tuple[Any, ...], weigh: Callable[[Any], Any]
) -> Recording:
    """Run the model and the backward pass of weigh(outputs), a number. prefix: what the names of
    a wrapper's modules begin with, which is left out.
    """
    found = Recording()
    for name, parameter in [*adapter.parameters(), *adapter.constants()]:
        found.parameters[name.removeprefix(prefix)] = array_of(parameter)
    with ExitStack() as held:
        for name, module in adapter.modules():
            if f"{name}.".startswith(prefix):
                _watch(held, found, name.removeprefix(prefix), module)
        outputs = adapter.module(*inputs)
    weigh(outputs).backward()
    for name, parameter in adapter.parameters():
        gradient = adapter.gradient(parameter)
        if gradient is not None:
            found.of_parameters[name.removeprefix(prefix)] = array_of(gradient)
    return found


def _watch(held: ExitStack, found: Recording, name: str, module: Any) -> None:
    """Until the forward pass ends: checkpointing may call the module again in the backward pass."""
    calls = 0

    def note(_: Any, __: Any, returned: Any) -> None:
        nonlocal calls
        for number, tensor in enumerate(tensors_in(returned)):
            key = Key(name, calls, number)
            found.outputs[key] = array_of(tensor)
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient, key=key: _keep(found, key, gradient))
        calls += 1

    held.callback(module.register_forward_hook(note).remove)


def _keep(found: Recording, key: Key, gradient: Any) -> None:
    found.gradients.setdefault(key, array_of(gradient))


def tensors_in(value: Any) -> list[Any]:
    """Tensors of floating point within nested lists, tuples and dicts."""
    return [each for each in leaves(value) if hasattr(each, "requires_grad") and _is_float(each)]


def _is_float(tensor: Any) -> bool:
    return "float" in str(tensor.dtype) and "complex" not in str(tensor.dtype)


def array_of(tensor: Any) -> Any:
    """A copy in host memory: float64 of what is of floating point."""
    values = getattr(tensor, "data", tensor)
    if hasattr(values, "detach"):  # torch's
        values = values.detach().cpu()
        values = (values.double() if values.is_floating_point() else values).numpy()
    elif hasattr(values, "get"):  # cupy's
        values = values.get()
    return np.array(values, np.float64 if _is_float(tensor) else None)
