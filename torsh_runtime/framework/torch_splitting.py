"""Computes weight gradients of torch's linear, convolution and embedding later.

Where a stage calls these with parameters, a mode replaces them by autograd functions that leave the
parameters' gradients to a second part of the backward pass (Qi et al., "Zero Bubble Pipeline
Parallelism", 2024). All other operations have their whole backward pass in the first part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from torsh_runtime.framework.hooks import OnGradient
from torsh_runtime.framework.torch_graph import run_backward

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
_C: Any = torch._C


class Left(NamedTuple):
    """Holds the rest of an operation's backward pass."""

    parameters: tuple[Tensor, ...]
    add: Callable[[], None]
    """Accumulates the gradients of the parameters."""


class _Aside(NamedTuple):
    """Holds the hooks and the gradient of a parameter that are put aside for a first part."""

    parameter: Tensor
    hooks: dict[int, Any]
    gradient: Tensor | None


class Later:
    """Collects weight gradients to be computed later."""

    def __init__(self) -> None:
        self.calls: list[Left] | None = None
        self._aside: list[_Aside] = []

    @contextmanager
    def collecting(self) -> Iterator[list[Left]]:
        """Collect the second part of the backward pass that runs within the block.

        Yields the list for carry_out(), which is complete after the block.
        """
        calls: list[Left] = []
        self.calls = calls
        try:
            yield calls
        finally:
            self.calls = None
            self._put_back(calls)

    def leave(self, add: Callable[[], None], *parameters: Tensor | None) -> None:
        """Leave a computation to the second part.

        If a program has registered hooks of a parameter, these are to be called once, with the
        whole gradient. So all that the first part finds of its gradient is left, too.
        """
        assert self.calls is not None, "somebody collects"
        trained = tuple(each for each in parameters if each is not None and each.requires_grad)
        self.calls.append(Left(trained, add))
        for parameter in trained:
            own = _programs_hooks(parameter)
            if own:  # autograd accumulates when all operations before have gone by, as this one
                self._aside.append(_Aside(parameter, own, parameter.grad))
                parameter.grad = None
                for key in own:
                    del _hooks(parameter)[key]

    def _put_back(self, calls: list[Left]) -> None:
        while self._aside:
            parameter, hooks, before = self._aside.pop()
            found, parameter.grad = parameter.grad, before
            _hooks(parameter).update(hooks)
            if found is not None:
                calls.append(Left((parameter,), partial(_add, parameter, found)))


class TorchSplitter:
    """Implements Splitter for torch."""

    def __init__(self) -> None:
        self._later = Later()

    def splitting(self) -> AbstractContextManager[object]:
        mode: AbstractContextManager[object] = Splitting(self._later)
        return mode

    def backward_inputs(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        with self._later.collecting() as calls:
            run_backward(outputs, gradients)
        return partial(carry_out, calls)


def carry_out(left: list[Left]) -> None:
    """Compute the second part.

    A parameter's hooks are called once, when its gradient is complete.
    """
    awaited = Counter(id(parameter) for each in left for parameter in each.parameters)
    with torch.no_grad():
        while left:
            parameters, add = left.pop(0)
            add()
            for parameter in parameters:
                awaited[id(parameter)] -= 1
                if not awaited[id(parameter)]:
                    for hook in _programs_hooks(parameter).values():
                        hook(parameter)


def _hooks(parameter: Tensor) -> dict[int, Any]:
    """Return hooks registered by register_post_accumulate_grad_hook()."""
    found: dict[int, Any] | None = parameter._post_accumulate_grad_hooks
    return {} if found is None else found


def _programs_hooks(parameter: Tensor) -> dict[int, Any]:
    """Return hooks that are not a wrapper's: wrappers reduce when the table says so."""
    hooks = _hooks(parameter)
    return {key: hook for key, hook in hooks.items() if not isinstance(hook, OnGradient)}


class Splitting(TorchFunctionMode):
    """Replaces torch's functions by those that leave weight gradients for later."""

    def __init__(self, later: Later) -> None:
        super().__init__()
        self._later = later
        modes: Any = torch.overrides._get_current_function_mode_stack
        around = modes()
        # which may make something else of a call than what is differentiated here
        self._is_alone = all(isinstance(mode, DeviceContext) for mode in around)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _CALLS.get(func) if self._is_alone else None
        if found is not None and not _is_left_alone():
            result = found(self._later, *args, **(kwargs or {}))
            if result is not None:
                return result
        return func(*args, **(kwargs or {}))


def is_splitting() -> bool:
    """Return whether the weight gradients of what is called now are left for later."""
    modes: Any = torch.overrides._get_current_function_mode_stack
    if not _C._len_torch_function_stack():
        return False
    return any(isinstance(mode, Splitting) for mode in modes()) and not _is_left_alone()


def _is_left_alone() -> bool:
    """Return whether torch's own operations have to be used.

    This is so in a checkpoint, which computes again without the mode and has to save the same;
    under autocast, where calls use different dtypes than their arguments have; and where functions
    are transformed, as by vmap() and jvp(), which know torch's own operations.
    """
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return True
    if _C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        return True
    top_hooks = getattr(_C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    return top_hooks(False) is not None


def _is_parameter(tensor: Any) -> bool:
    """Return whether it is a parameter whose gradient may come later, and not complex."""
    is_trained = isinstance(tensor, Tensor) and tensor.requires_grad and not tensor.is_complex()
    return is_trained and _can_wait(tensor)


def _is_plain(tensor: Any) -> bool:
    """Return whether operations treat it as torch does: a subclass may do something else."""
    return type(tensor) in (Tensor, torch.nn.Parameter, type(None))


def _can_wait(tensor: Tensor | None) -> bool:
    """Return whether only the parameter gets its gradient: no operation, and no hook that may
    change it.
    """
    return tensor is None or (tensor.is_leaf and not tensor._backward_hooks)


def _add(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)


def _needed(ctx: Any, weight: Tensor) -> Tensor | None:
    """Return the weight if the input's gradient is needed, which is computed from it.

    It is saved so that torch reports changes of a weight before its backward pass.
    """
    return weight if ctx.needs_input_grad[0] else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, later: Later) -> Tensor:
        ctx.save_for_backward(x, _needed(ctx, weight))
        ctx.weight, ctx.bias, ctx.later = weight, bias, later
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, needed = ctx.saved_tensors
        for_x = None if needed is None else gradient.matmul(needed)
        rows, inputs = gradient.flatten(0, -2), x.flatten(0, -2)
        if ctx.later.calls is None:
            for_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
            return for_x, rows.t().mm(inputs), for_bias, None
        weight, bias = ctx.weight, ctx.bias
        ctx.later.leave(lambda: _linear_later(weight, bias, rows, inputs), weight, bias)
        return for_x, None, None, None


def _linear_later(weight: Tensor, bias: Tensor | None, rows: Tensor, inputs: Tensor) -> None:
    if weight.grad is None:
        weight.grad = rows.t().mm(inputs)
    else:
        weight.grad.addmm_(rows.t(), inputs)
    if bias is not None and bias.requires_grad:
        _add(bias, rows.sum(0))


def _linear(later: Later, input: Any, weight: Any, bias: Any = None) -> Any:
    if not all(map(_is_plain, (input, weight, bias))):
        return None
    if not _is_parameter(weight) or not _can_wait(bias) or input.ndim < 2:
        return None
    return _linear_function(input, weight, bias, later)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: Any, later: Later
    ) -> Tensor:
        ctx.save_for_backward(x, _needed(ctx, weight))
        ctx.weight, ctx.bias, ctx.options, ctx.later = weight, bias, options, later
        result: Tensor = _aten.convolution(x, weight, bias, *options)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, _ = ctx.saved_tensors
        weight, bias, options, later = ctx.weight, ctx.bias, ctx.options, ctx.later
        sizes = None if bias is None else [*bias.shape]
        wanted = [ctx.needs_input_grad[0], True, bool(ctx.needs_input_grad[2])]

        def found(*mask: bool) -> Any:
            return _aten.convolution_backward(gradient, x, weight, sizes, *options, [*mask])

        if later.calls is None:
            return *found(*wanted), None, None

        def add() -> None:
            _, for_weight, for_bias = found(False, *wanted[1:])
            _add(weight, for_weight)
            if for_bias is not None and bias is not None:
                _add(bias, for_bias)

        later.leave(add, weight, bias)
        for_x = found(True, False, False)[0] if wanted[0] else None
        return for_x, None, None, None, None


def _convolution(dims: int) -> Callable[..., Any]:
    def call(
        later: Later,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        is_plain = all(map(_is_plain, (input, weight, bias)))
        is_batch = is_plain and input.ndim == dims + 2 and not isinstance(padding, str)
        if not is_batch or not _is_parameter(weight) or not _can_wait(bias):
            return None
        stride, padding, dilation = (
            [each] * dims if isinstance(each, int) else [*each]
            for each in (stride, padding, dilation)
        )
        options = (stride, padding, dilation, False, [0] * dims, groups)
        return _convolution_function(input, weight, bias, options, later)

    return call


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, options: Any, later: Later) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.weight, ctx.options, ctx.later = weight, options, later
        result: Tensor = _aten.embedding(weight, indices, *options)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        weight, options, later = ctx.weight, ctx.options, ctx.later

        def found() -> Tensor:
            result: Tensor = _aten.embedding_dense_backward(
                gradient, indices, weight.shape[0], *options[:2]
            )
            return result

        if later.calls is None:
            return None, found(), None, None
        later.leave(lambda: _add(weight, found()), weight)
        return None, None, None, None


def _embedding(
    later: Later,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    del norm_type
    is_plain = _is_plain(input) and _is_plain(weight)
    if max_norm is not None or sparse or not is_plain or not _is_parameter(weight):
        return None
    where = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return _embedding_function(input, weight, (where, scale_grad_by_freq), later)


_linear_function: Any = _Linear.apply
_convolution_function: Any = _Convolution.apply
_embedding_function: Any = _Embedding.apply
_CALLS: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    F.embedding: _embedding,
}
