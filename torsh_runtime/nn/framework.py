"""Implements torsh_runtime.framework.Framework for this library, which does not know of it: the
operations that parallel code needs besides tensors and modules."""

from __future__ import annotations

import mmap
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.errors import ConfigError
from torsh_runtime.nn import foreach, functional, init
from torsh_runtime.nn.arrays import Array, array_module, dtype_named, to_device
from torsh_runtime.nn.backward import (
    backward,
    backward_inputs,
    in_backward,
    leaves,
    queue_callback,
)
from torsh_runtime.nn.checkpointing import checkpoint
from torsh_runtime.nn.function import Function
from torsh_runtime.nn.grad_mode import is_grad_enabled, set_grad_enabled
from torsh_runtime.nn.graph import operand
from torsh_runtime.nn.module import Module
from torsh_runtime.nn.parameter import Parameter
from torsh_runtime.nn.random import generator, get_rng_state, initial_seed, set_rng_state
from torsh_runtime.nn.shaping import concat
from torsh_runtime.nn.tensor import Tensor

Call = Callable[[], None]


class NnFramework:
    """Implements the framework with this library's functions. Values are arrays."""

    name = "nn"
    tensor_type = Tensor
    module_type = Module
    functional: Any = functional
    foreach: Any = foreach
    has_functional_call = False

    # Values and their memory

    def dtype(self, name: str) -> np.dtype[Any]:
        try:
            return dtype_named(name)
        except TypeError:
            raise ConfigError(f"{name!r} is no dtype of numpy's") from None

    def cast(self, values: Array, dtype: str) -> Array:
        return values.astype(dtype_named(dtype), copy=False)

    def empty(self, size: int | tuple[int, ...], dtype: str, like: Tensor | None) -> Array:
        return _arrays(like).empty(size, self.dtype(dtype))

    def zeros(self, size: tuple[int, ...], dtype: str, like: Tensor | None) -> Array:
        return _arrays(like).zeros(size, self.dtype(dtype))

    def full_like(self, tensor: Tensor, value: float) -> Array:
        return array_module(tensor.data).full_like(tensor.data, value)

    def from_numpy(self, memory: Any, dtype: str) -> Array:
        return memory.view(self.dtype(dtype))

    def releasable(self, size: int, dtype: str, like: Tensor) -> Array:
        if array_module(like.data) is not np:
            return self.empty(size, dtype, like)
        kind = self.dtype(dtype)
        memory = mmap.mmap(-1, max(size * kind.itemsize, 1), flags=mmap.MAP_PRIVATE)
        return np.ndarray(size, kind, memory)

    def release(self, values: Array) -> None:
        if isinstance(values.base, mmap.mmap):  # cupy arrays have none
            values.base.madvise(mmap.MADV_DONTNEED)

    def allocate(self, values: Array) -> None:
        pass  # writing to it allocates it

    def memory_pool(self, like: Array) -> None:
        return None

    def holders(self, values: Array) -> int:
        while isinstance(values.base, type(values)):
            values = values.base
        return sys.getrefcount(values)  # which is the base of all views

    def copy(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target[...] = source

    def part(self, flat: Array, start: int, like: Tensor) -> Array:
        return flat[start : start + like.numel()].reshape(like.shape)

    offloads = False

    def pinned(self, size: int, dtype: str) -> Array:
        return np.empty(size, self.dtype(dtype))

    def aside(self, like: Tensor) -> AbstractContextManager[None]:
        return nullcontext()

    def copy_without_waiting(self, target: Array, source: Array) -> None:
        target[...] = source

    def moment(self, like: Tensor) -> Callable[[], None]:
        return lambda: None

    def offloading(self, call: Any, inputs: Any, named: Any, kept: Sequence[Array]) -> Any:
        return call(*inputs, **named)

    def array(self, flat: Array) -> Array:
        return flat

    def following(self, flat: Array) -> AbstractContextManager[object]:
        return nullcontext()

    def dense(self, values: Array) -> Array:
        return values

    def let_go_of_freed(self) -> None:
        pass  # this library keeps none

    draws_for_whole = True
    initial_seed = staticmethod(initial_seed)

    def random_number(self) -> int:
        return int(generator().integers(1 << 62))

    def get_rng_state(self, like: Tensor | None) -> object:
        return get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        set_rng_state(state)

    def synchronize(self, like: Tensor | None) -> None:
        if _arrays(like) is not np:
            _arrays(like).cuda.get_current_stream().synchronize()

    # Tensors

    def tensor(self, values: Array) -> Tensor:
        return Tensor(values)

    def parameter(self, tensor: Tensor) -> Parameter:
        return Parameter(tensor)

    def uniform(self, shape: tuple[int, ...], bound: float, dtype: Any) -> Tensor:
        empty = Tensor(np.empty(shape, dtype_named(dtype or np.float32)))
        drawn: Tensor = init.uniform_(empty, -bound, bound)
        return drawn

    def as_tensor(self, array: NDArray[Any], like: Tensor) -> Tensor:
        return Tensor(array_module(like.data).asarray(array, like.data.dtype))

    def numpy(self, tensor: Tensor) -> NDArray[Any]:
        found: NDArray[Any] = to_device(tensor.data, "cpu")
        return found

    def leaf(self, values: Array, requires_grad: bool) -> Tensor:
        return Tensor(values, requires_grad)

    def values(self, tensor: Tensor) -> Array:
        found = tensor.data
        xp = np if isinstance(found, np.ndarray) else array_module(found)
        return xp.asarray(found, order="C")

    def beyond(self, tensor: Tensor) -> str:
        return ""

    def set_gradient(self, parameter: Tensor, gradient: Array) -> None:
        parameter.grad = Tensor(gradient)

    def write_gradient(self, gradient: Tensor, values: Array) -> None:
        gradient.data[...] = values

    def is_at(self, gradient: Array, view: Array) -> bool:
        return gradient is view

    def mark(self, parameter: Tensor, mark: object) -> None:
        pass  # optim needs no marks

    def settle(self, optimizer: object) -> None:
        pass  # those of optim compute elementwise

    def check_spread(self, optimizer: object, wrapper: str) -> None:
        pass

    def is_piece_of_wrapper(self, parameter: Tensor) -> bool:
        return False  # mark() keeps none

    def is_made_of_others(self, tensor: Tensor) -> bool:
        return False

    def watched(self, use: Callable[[Any], None]) -> type | None:
        return None

    def watch(self, parameter: Tensor, kind: type | None) -> None:
        pass

    # Modules

    def functional_call(
        self, module: Module, parameters: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
    ) -> Any:
        raise NotImplementedError("modules of torsh_runtime.nn are called with their parameters")

    def is_called(self, module: Module) -> bool:
        return type(module).forward is not Module.forward

    def gives_sparse_gradients(self, module: Module) -> bool:
        return False

    def communicates_in_backward(self, module: Module) -> bool:
        return False

    def device(self, given: Any) -> str:
        return str(given)

    def materialise(
        self, module: Module, initialise: Callable[[Any], object], device: str = "cpu"
    ) -> None:
        initialise(module)

    def on_state_dict(self, module: Module, before: Call) -> None:
        pass

    def on_broken_forward(self, module: Module, call: Callable[[], None]) -> None:
        forward, changed = module.forward, cast("Any", module)

        def watched(*inputs: Any, **named: Any) -> Any:
            try:
                return forward(*inputs, **named)
            except BaseException:
                call()
                raise

        changed.forward = watched  # hooks are not called then

    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call

    def checkpoint(self, call: Callable[..., Any], inputs: Any, named: Any) -> Any:
        return checkpoint(partial(call, **named), *inputs)

    # Graphs

    def apply(self, operation: Any, tensor: Tensor) -> Tensor:
        if operation.is_in_place:
            operation(tensor.data)
            return tensor
        result: Tensor = _Applied.apply(tensor, operation)
        return result

    def apply_jointly(self, operation: Any, *tensors: Tensor) -> Tensor:
        result: Tensor = _Joint.apply(operation, *tensors)
        return result

    cat = staticmethod(concat)

    is_grad_enabled = staticmethod(is_grad_enabled)

    def is_inference_mode_enabled(self) -> bool:
        return False

    def set_grad_enabled(self, mode: bool) -> AbstractContextManager[object]:
        return set_grad_enabled(mode)

    backward = staticmethod(backward)

    def splitter(self) -> _Splitter:
        return _Splitter()

    def held_bytes(self, forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
        was_tracing = tracemalloc.is_tracing()
        if not was_tracing:
            tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            results = forward()
            held = tracemalloc.get_traced_memory()[0] - before
            del results
        finally:
            if not was_tracing:
                tracemalloc.stop()
        return held

    in_backward = staticmethod(in_backward)

    def is_nested(self) -> bool:
        return False  # callbacks wait for the outermost pass

    at_end_of_backward = staticmethod(queue_callback)

    def on_backward(self, outputs: Iterable[Tensor], call: Call) -> None:
        for tensor in outputs:
            tensor.register_hook(lambda _: call())

    def reached(self, outputs: Sequence[Tensor]) -> set[int]:
        return {id(leaf) for leaf in leaves(outputs)}


def _arrays(like: Tensor | None) -> Any:
    return np if like is None else array_module(like.data)


class _Splitter:
    backward_inputs = staticmethod(backward_inputs)

    def splitting(self) -> AbstractContextManager[object]:
        return nullcontext()  # the recorded graph can be walked in two parts as it is


class _Applied(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        tensor, ctx.operation = arguments
        return Tensor(ctx.operation(tensor.data))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return Tensor(ctx.operation.adjoint(gradients[0].data)), None


class _Joint(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        ctx.operation, *tensors = arguments
        result, saved = ctx.operation.forward(*map(operand, tensors))
        ctx.save_for_backward(*saved)
        return Tensor(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        found = ctx.operation.backward(gradients[0].data, *ctx.saved_tensors)
        return None, *(None if each is None else Tensor(each) for each in found)


FRAMEWORK: Any = NnFramework()
