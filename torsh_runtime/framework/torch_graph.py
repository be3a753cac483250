"""Operations in graphs of torch's autograd, for the port of torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch._C import _functorch
from torch._C._autograd import CreationMeta, _set_creation_meta
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes

from torsh_runtime.framework.operations import JointOperation, Operation
from torsh_runtime.integrations.torch.compiling import is_traced, leave_alone
from torsh_runtime.integrations.torch.modes import has_modes

_run_backward: Any = torch.autograd.graph._engine_run_backward


def run_backward(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Accumulate the gradients of all leaves, as torch.autograd.backward() does, which loads sympy
    to compare shapes, and that takes 35 MiB for good."""
    _run_backward(
        tuple(outputs),
        tuple(gradients),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, operation: Operation) -> torch.Tensor:
        ctx.operation = operation
        return _computed(operation, tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return applied(ctx.operation.adjoint, gradients[0]), None


def _differentiated(place: int, adjoint: Operation, gradients: Any) -> Any:
    """Return gradients with the adjoint as a part of the graph, if they will be differentiated
    themselves."""
    if not torch.is_grad_enabled() or gradients[place] is None:
        return None
    return *gradients[:place], applied(adjoint, gradients[place]), *gradients[place + 1 :]


def _computed(operation: Operation, tensor: torch.Tensor) -> torch.Tensor:
    """Compute apart from modes of torch's dispatcher: selective checkpointing's mode would keep
    memory that the operation then writes to, and would have it written to again when it goes
    forward once more."""
    compute: Any = operation
    result: torch.Tensor
    if not has_modes():
        result = compute(tensor)
        return result
    with _disable_current_modes():
        result = compute(tensor)
    return result


def _passed(tensor: torch.Tensor, adjoint: Operation) -> torch.Tensor:
    """Return the tensor, with the adjoint applied to its gradient. A custom autograd function
    would cost several times as much. Writing in place to the result, or to what it is a view of,
    would let the gradient bypass the adjoint, so torch refuses that as it does for a function's
    result."""
    result = tensor.view_as(tensor)
    _set_creation_meta(result, CreationMeta.IN_CUSTOM_FUNCTION)
    node: Any = result.grad_fn
    node.register_prehook(partial(_returned, adjoint, tensor.shape, tensor.dtype, tensor.device))
    return result


@leave_alone
def _returned(
    adjoint: Operation, shape: torch.Size, dtype: torch.dtype, device: torch.device, gradients: Any
) -> tuple[torch.Tensor | None]:
    """Apply the adjoint to a gradient. A rank without a gradient takes part all the same."""
    (gradient,) = gradients
    if gradient is not None:
        return (applied(adjoint, gradient),)
    if applied(adjoint, torch.zeros(shape, dtype=dtype, device=device)).any():
        raise RuntimeError(
            f"a function returned no gradient on this rank and one on others, of a tensor of shape "
            f"{tuple(shape)} that each uses in its own way: return zeros"
        )
    return (None,)


def applied(operation: Operation, tensor: torch.Tensor) -> torch.Tensor:
    """Apply an operation, through which gradients flow by way of its adjoint."""
    if is_traced() and operation.is_traceable:
        found: torch.Tensor = operation.traced(tensor)
        return found
    return _applied(tensor, operation)


@leave_alone
def _applied(tensor: torch.Tensor, operation: Operation) -> torch.Tensor:
    if forward_ad._current_level >= 0 or _functorch.maybe_current_level() is not None:
        raise NotImplementedError(
            "collectives within a model know backward passes only: call the model outside "
            "torch.func and torch.autograd.forward_ad"
        )
    is_derived = tensor.requires_grad and tensor._is_view()  # torch asks its base what became of it
    if operation.is_in_place and (is_derived or has_modes()):
        operation = operation.adjoint.adjoint
    if operation.is_in_place:  # gradients need no node, which would cost them time
        operation(tensor.detach())
        torch.autograd.graph.increment_version(tensor)  # who has saved it notices
        if tensor.requires_grad:
            node: Any = tensor.grad_fn  # behind which the gradient of the result is taken
            node.register_prehook(partial(_differentiated, tensor.output_nr, operation.adjoint))
        return tensor
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return _computed(operation, tensor)
    if operation.is_identity:
        return _passed(tensor, operation.adjoint)
    apply: Any = _Applied.apply
    result: torch.Tensor = apply(tensor, operation)
    return result


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: JointOperation, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.operation = operation
        forward: Any = operation.forward
        result: torch.Tensor
        result, saved = forward(*tensors)
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.operation.backward(gradients[0], *ctx.saved_tensors)


@leave_alone
def applied_jointly(operation: JointOperation, *tensors: torch.Tensor) -> torch.Tensor:
    """Apply an operation with several tensors, through which gradients flow."""
    apply: Any = _Joint.apply
    result: torch.Tensor = apply(operation, *tensors)
    return result
