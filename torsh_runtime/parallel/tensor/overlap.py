"""Lets the gradients of torch's weights be computed while those of inputs are summed up.

A Column layer's backward pass has two products: one gives the gradient of its input, which the
ranks then sum, and the other that of its weight, which stays here (Shoeybi et al., "Megatron-LM",
2019). Each has a node of its own in the graph. Of the nodes that it can compute, torch takes the
one that was made last, so the order in which these are made here is the reverse of that in which
they run: _Enter begins the sum, _Weight computes beside it, and _Wait waits. Whatever the order, a
gradient goes on behind _Wait only when the sum is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.nn import functional

from torsh_runtime.backends.work import Work
from torsh_runtime.framework.operations import Operation
from torsh_runtime.framework.torch_graph import applied
from torsh_runtime.framework.torch_splitting import is_splitting
from torsh_runtime.integrations.torch.compiling import is_traced
from torsh_runtime.integrations.torch.modes import has_modes
from torsh_runtime.parallel.regions.arrays import contiguous, copied, empty, split
from torsh_runtime.parallel.regions.maps import ReduceScatter, Sum

_PLAIN = Tensor, torch.nn.Parameter
_WITHOUT_STREAMS = ("cpu",)
"""Kinds of devices that compute nothing beside a communication."""


def deferred(input: Tensor, weight: Tensor) -> Deferred | None:
    """Return what defers the gradient of a weight on GPUs; None elsewhere, and where somebody else
    looks at what is computed.
    """
    if input.device.type in _WITHOUT_STREAMS or is_traced() or not torch.is_grad_enabled():
        return None
    are_plain = type(input) in _PLAIN and type(weight) in _PLAIN
    if not (are_plain and input.requires_grad and weight.requires_grad):
        return None
    is_observed = has_modes() or is_splitting()
    is_transformed = forward_ad._current_level >= 0 or _functorch.maybe_current_level() is not None
    return None if is_observed or is_transformed else Deferred(weight)


class Deferred:
    """Defers the gradient of a layer's weight in one call of the layer."""

    def __init__(self, weight: Tensor) -> None:
        """Defer the gradient of this weight."""
        self._plain, self._weight = weight, weight
        self._left: tuple[Tensor, Tensor, Tensor] | None = None

    def enter(self, tensor: Tensor, operation: Operation) -> Tensor:
        """Apply an operation to a tensor, whose gradient is communicated beside the weight's."""
        sums = _Sums()
        apply: Any = _Wait.apply
        waited = apply(tensor, sums)
        self.begin()
        enter: Any = _Enter.apply
        entered: Tensor = enter(waited, operation, sums)
        return entered

    def begin(self) -> None:
        """Make the weight's node, unless it has been made."""
        if self._weight is self._plain:
            apply: Any = _Weight.apply
            self._weight = apply(self._plain, self)

    def linear(self, tensor: Tensor, _: Tensor, bias: Tensor | None) -> Tensor:
        """Return what functional.linear() does of a tensor that has entered, and the weight."""
        self.begin()
        apply: Any = _Linear.apply
        result: Tensor = apply(tensor, self._weight, bias, self)
        return result

    def keep(self, gradient: Tensor, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Keep what the weight's gradient is computed of, and return zeros in its place."""
        shape = gradient.shape[-1], tensor.shape[-1]
        zeros = gradient.new_zeros((), dtype=dtype).expand(shape)
        self._left = gradient, tensor, zeros
        return zeros

    def gradient(self, found: Tensor) -> Tensor:
        """Return the weight's gradient, with what has been kept. found: all other of it."""
        left, self._left = self._left, None
        if left is None:
            return found
        gradient, tensor, zeros = left
        own = _of_weight(gradient, tensor).to(found.dtype)
        return own if found is zeros else found + own


def _of_weight(gradient: Tensor, tensor: Tensor) -> Tensor:
    return gradient.reshape(-1, gradient.shape[-1]).T @ tensor.reshape(-1, tensor.shape[-1])


class _Linear(torch.autograd.Function):
    """Multiplies, and leaves the gradient of the weight to _Weight."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, weight: Tensor, bias: Tensor | None, later: Deferred
    ) -> Tensor:
        ctx.later, ctx.dtypes = later, (tensor.dtype, weight.dtype, bias is None or bias.dtype)
        tensor, weight = (_cast(each) for each in (tensor, weight))
        ctx.save_for_backward(tensor, weight)
        return functional.linear(tensor, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,), (tensor, weight), for_bias = gradients, ctx.saved_tensors, None
        of_tensor, of_weight, of_bias = ctx.dtypes
        if ctx.needs_input_grad[2]:
            for_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(of_bias)
        for_tensor = (gradient @ weight).to(of_tensor)
        if torch.is_grad_enabled():  # a graph of this pass, too: nothing is left to others
            return for_tensor, _of_weight(gradient, tensor).to(of_weight), for_bias, None
        return for_tensor, ctx.later.keep(gradient, tensor, of_weight), for_bias, None


def _cast(tensor: Tensor) -> Tensor:
    """Return what autocast makes of an operand of linear()."""
    device = tensor.device.type
    if not torch.is_autocast_enabled(device) or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


class _Weight(torch.autograd.Function):
    """Gives the weight its gradient, which _Linear has left."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, later: Deferred) -> Tensor:
        ctx.later = later
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return ctx.later.gradient(gradients[0]), None


class _Sums:
    """Holds a communication that has begun, with its tensors."""

    def __init__(self) -> None:
        self.wait: Callable[[], object] = _nothing


class _Enter(torch.autograd.Function):
    """Applies an operation, and begins its adjoint in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, operation: Any, sums: _Sums) -> Tensor:
        ctx.adjoint, ctx.sums = operation.adjoint, sums
        found: Tensor = operation(tensor)
        return found.view_as(tensor) if found is tensor else found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # a graph of this pass, too
            return applied(ctx.adjoint, gradients[0]), None, None
        found, work = _begun(ctx.adjoint, gradients[0])
        ctx.sums.wait = work.wait
        return found, None, None


class _Wait(torch.autograd.Function):
    """Waits in the backward pass for what _Enter has begun."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: _Sums) -> Tensor:
        ctx.sums = sums
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        wait, ctx.sums.wait = ctx.sums.wait, _nothing
        wait()
        return gradients[0], None


def _begun(adjoint: Any, gradient: Tensor) -> tuple[Tensor, Work]:
    """Begin a sum. Return the tensor that will have it, and what to wait for."""
    group = adjoint.group
    if isinstance(adjoint, Sum):
        total = copied(gradient)
        return total, group.all_reduce(total, async_op=True)
    assert isinstance(adjoint, ReduceScatter), "what brings tensors in is a Copy or an AllGather"
    parts = [contiguous(each) for each in split(gradient, adjoint.dim, adjoint.sizes)]
    own = empty(gradient, parts[group.rank].shape)
    if len({*adjoint.sizes}) > 1:
        return own, group.reduce_scatter(own, parts, async_op=True)
    return own, group.reduce_scatter_tensor(own, torch.stack(parts), async_op=True)


def _nothing() -> None:
    """Wait for nothing."""
