"""Answers questions about models of any framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.shared import empty_shared
from torsh_runtime.framework import Framework, Module, Tensor, Values, framework_of
from torsh_runtime.framework.hooks import OnGradient
from torsh_runtime.framework.protocol import Call
from torsh_runtime.framework.trees import leaves, mapped

V = TypeVar("V", bound=Values)
Named = list[tuple[str, Tensor]]
Kind = tuple[str, str]
"""The names of a dtype and of a device. Tensors of one kind fit into one flat one."""


def trained_parameters(model: Module) -> Named:
    """List the parameters that want gradients, in the model's order, each once."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def constant_parameters(model: Module) -> Named:
    """List the parameters that want no gradients."""
    return [(name, p) for name, p in model.named_parameters() if not p.requires_grad]


def all_parameters(model: Module) -> Named:
    """List the parameters that want gradients, and then the others."""
    return [*trained_parameters(model), *constant_parameters(model)]


def kind_of(tensor: Tensor | Values) -> Kind:
    """Name the dtype and the device of a tensor or of values."""
    device: Any = getattr(tensor, "device", "cpu")  # which numpy before 2 has not
    return dtype_name(tensor), f"cuda:{device.id}" if hasattr(device, "id") else str(device)


def shaped(flat: V, start: int, shape: tuple[int, ...]) -> V:
    """View the elements from `start` on, row-major in this shape."""
    return flat[start : start + math.prod(shape)].reshape(shape)


def flat_memory(like: Tensor, size: int, group: ProcessGroup, dtype: str) -> Values:
    """Make uninitialised values where `like` is and where the group's collectives work in place.
    All its ranks make them at the same time."""
    framework = framework_of(like)
    if kind_of(like)[1] != "cpu":
        return framework.empty(size, dtype, like)
    memory = empty_shared(size * framework.dtype(dtype).itemsize, "uint8", group)
    return framework.from_numpy(memory, dtype)


def common_memory(like: Tensor, size: int, group: ProcessGroup, dtype: str) -> Values | None:
    """Make the same, of which all ranks of the group have the one memory; None where they have none
    in common."""
    framework = framework_of(like)
    if kind_of(like)[1] != "cpu":
        return None
    memory = group.common_memory(size * framework.dtype(dtype).itemsize)
    return None if memory is None else framework.from_numpy(np.frombuffer(memory, "uint8"), dtype)


def differentiable(framework: Framework, outputs: object) -> list[Tensor]:
    """List the tensors within `outputs` that gradients can come back to."""
    kind = framework.tensor_type
    return [each for each in leaves(outputs) if isinstance(each, kind) and each.requires_grad]


def on_gradient(parameter: Tensor, call: Call) -> Call:
    """Call it whenever the parameter's gradient has been accumulated in a backward pass. What is
    returned ends that."""
    return parameter.register_post_accumulate_grad_hook(OnGradient(call)).remove


def has_hook_of_program(parameter: Tensor) -> bool:
    """Return whether a program wants to be called when the parameter's gradient has come."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return any(not isinstance(each, OnGradient) for each in hooks.values())


def on_forward(
    framework: Framework, module: Module, before: Call, after: Callable[[Any], None]
) -> None:
    """Call before() whenever a module is about to be called, and after(outputs)."""
    untraced = framework.untraced
    module.register_forward_pre_hook(untraced(lambda *_: before()), prepend=True)
    module.register_forward_hook(untraced(lambda _, __, outputs: after(outputs)))


def around_forward(module: Module, around: Callable[[Any, Any, Any], Any]) -> None:
    """Replace what a module computes by around(forward, inputs, named inputs), within what
    on_forward() calls."""
    forward = module.forward
    changed: Any = module
    changed.forward = lambda *inputs, **named: around(forward, inputs, named)


def communicates_in_backward(model: Module) -> bool:
    """Tell whether layers have collectives of their own in their backward pass."""
    framework = framework_of(model)
    return any(
        getattr(each, "communicates_in_backward", False) or framework.communicates_in_backward(each)
        for _, each in model.named_modules()
    )


def is_meta(module: Module) -> bool:
    """Tell whether a module has tensors of its own without memory."""
    named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return any(getattr(each, "is_meta", False) for _, each in named)


def own_initialiser(module: Module) -> Callable[[Any], object] | None:
    """Find what gives such a module values, as it does itself when it is made."""
    kind = type(module)  # torch's MultiheadAttention has the latter
    found = (getattr(kind, name, None) for name in ("reset_parameters", "_reset_parameters"))
    return next(filter(None, found), None)


def replace_module(model: Module, module: object, other: Module) -> None:
    """Put another module where one of the model's is."""
    for _, parent in [*model.named_modules()]:
        for name, child in [*parent.named_children()]:
            if child is module:
                setattr(parent, name, other)


def tables(model: Module) -> list[dict[str, Any]]:
    """Find where the modules have their parameters and modules, by name."""
    modules = [module for _, module in model.named_modules()]
    return [table for each in modules for table in (each._parameters, each._modules)]


def cast_buffers(model: Module, dtype: str) -> None:
    """Let floating point buffers have this dtype."""
    framework = framework_of(model)
    for _, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.data = framework.cast(buffer.data, dtype)


def cast_inputs(framework: Framework, inputs: Any, dtype: str) -> Any:
    """Make the same nested lists, tuples and dicts, with floating point tensors of this dtype;
    gradients flow back."""
    kind, wanted = framework.tensor_type, framework.dtype(dtype)

    def cast(value: Any) -> Any:
        is_cast = isinstance(value, kind) and value.is_floating_point()
        return value.to(wanted) if is_cast else value

    return mapped(cast, inputs)
