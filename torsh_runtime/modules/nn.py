"""Models of torsh_runtime.nn, on numpy or cupy. Beside parameters and buffers, which are Tensors,
all values here are arrays."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from torsh_runtime import nn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.shared import empty_shared
from torsh_runtime.errors import ConfigError
from torsh_runtime.modules.base import Call, ModuleAdapter, Named, leaves, mapped
from torsh_runtime.nn import backward
from torsh_runtime.nn.arrays import array_module, dtype_named


class NnModule(ModuleAdapter[Any]):
    """A torsh_runtime.nn.Module. See ModuleAdapter."""

    module_class = nn.Module
    framework = "nn"

    def parameters(self) -> Named[Any]:
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]

    def constants(self) -> Named[Any]:
        return [(name, p) for name, p in self.module.named_parameters() if not p.requires_grad]

    def buffers(self) -> Named[Any]:
        return list(self.module.named_buffers())

    def modules(self) -> Named[Any]:
        return list(self.module.named_modules())

    def own_parameters(self, module: Any) -> Named[Any]:
        return list(module.named_parameters(recurse=False))

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def kind(self, tensor: Any) -> tuple[str, str]:
        array = self.values(tensor)
        is_host = array_module(array) is np
        return array.dtype.name, "cpu" if is_host else f"cuda:{array.device.id}"

    def values(self, tensor: Any) -> Any:
        return tensor.data if isinstance(tensor, nn.Tensor) else tensor

    def tensor(self, values: Any) -> Any:
        return nn.Tensor(values)

    def flat(self, like: Any, size: int, group: ProcessGroup, dtype: str | None = None) -> Any:
        array = self.values(like)
        kind = array.dtype if dtype is None else dtype_named(dtype)
        xp = array_module(array)
        return empty_shared(size, kind, group) if xp is np else xp.empty(size, kind)

    def common(
        self, like: Any, size: int, group: ProcessGroup, dtype: str | None = None
    ) -> Any | None:
        array = self.values(like)
        kind = array.dtype if dtype is None else dtype_named(dtype)
        if array_module(array) is not np:
            return None
        memory = group.common_memory(size * kind.itemsize)
        return None if memory is None else np.frombuffer(memory, np.uint8).view(kind)

    def releasable(self, like: Any, size: int, dtype: str | None = None) -> Any:
        array = self.values(like)
        kind = array.dtype if dtype is None else dtype_named(dtype)
        if array_module(array) is not np:
            return array_module(array).empty(size, kind)
        memory = mmap.mmap(-1, max(size * kind.itemsize, 1), flags=mmap.MAP_PRIVATE)
        return np.ndarray(size, kind, memory)

    def release(self, flat: Any) -> None:
        if isinstance(flat.base, mmap.mmap):  # cupy has no such thing
            flat.base.madvise(mmap.MADV_DONTNEED)

    def allocate(self, flat: Any) -> None:
        pass  # it is written to

    def flattened(self, tensor: Any) -> Any:
        return self.values(tensor).reshape(-1)

    def part(self, flat: Any, start: int, like: Any) -> Any:
        return self.shaped(flat, start, self.shape(like))

    def shaped(self, flat: Any, start: int, shape: tuple[int, ...]) -> Any:
        return flat[start : start + math.prod(shape)].reshape(shape)

    def slice(self, flat: Any, start: int, end: int) -> Any:
        return flat[start:end]

    def copy(self, target: Any, source: Any) -> None:
        self.values(target)[...] = self.values(source)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return self.values(tensor).astype(dtype_named(dtype), copy=False)

    def cast_buffers(self, dtype: str) -> None:
        for _, buffer in self.buffers():
            if _is_floating(buffer):
                buffer.data = self.cast(buffer, dtype)

    def cast_inputs(self, inputs: Any, dtype: str) -> Any:
        def cast(value: Any) -> Any:
            is_cast = isinstance(value, nn.Tensor) and _is_floating(value)
            return value.to(dtype) if is_cast else value

        return mapped(cast, inputs)

    def add(self, target: Any, source: Any) -> None:
        array = self.values(target)
        array += self.values(source)

    def clone(self, tensor: Any) -> Any:
        return self.values(tensor).copy()

    def like(self, parameter: Any, values: Any) -> Any:
        return values.astype(parameter.data.dtype)

    def itemsize(self, dtype: str) -> int:
        try:
            return dtype_named(dtype).itemsize
        except TypeError:
            raise ConfigError(f"{dtype!r} is no dtype of numpy's") from None

    def fill(self, tensor: Any, value: float) -> None:
        self.values(tensor)[...] = value

    def scale(self, tensor: Any, factor: float) -> None:
        array = self.values(tensor)
        array *= array.dtype.type(factor)

    def is_finite(self, tensor: Any) -> bool:
        array = self.values(tensor)
        return bool(array_module(array).isfinite(array).all())

    def array(self, flat: Any) -> Any:
        return flat

    def gradient(self, parameter: Any) -> Any:
        return None if parameter.grad is None else parameter.grad.data

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        parameter.grad = None if gradient is None else nn.Tensor(gradient)

    def set_values(self, parameter: Any, values: Any) -> None:
        parameter.data = values

    def is_at(self, gradient: Any, view: Any) -> bool:
        return gradient is view

    def wants_gradient(self, parameter: Any) -> bool:
        return bool(parameter.requires_grad)

    def on_gradient(self, parameter: Any, call: Call) -> Call:
        remove: Call = parameter.register_post_accumulate_grad_hook(lambda _: call()).remove
        return remove

    def on_forward(self, module: Any, before: Call, after: Callable[[Any], None]) -> None:
        module.register_forward_pre_hook(lambda *_: before())
        module.register_forward_hook(lambda _, __, outputs: after(outputs))

    def checkpoint(self, call: Any, inputs: Any, named: Any) -> Any:
        return nn.checkpoint(partial(call, **named), *inputs)

    def at_end_of_backward(self, call: Call) -> None:
        backward.queue_callback(call)

    def on_backward(self, outputs: object, call: Call) -> None:
        for tensor in _differentiable(outputs):
            tensor.register_hook(lambda _: call())

    def in_backward(self) -> bool:
        return backward.in_backward()

    def is_nested(self) -> bool:
        return False  # callbacks wait for the outermost pass

    def reached(self, outputs: object) -> set[int]:
        return {id(leaf) for leaf in backward.leaves(_differentiable(outputs))}

    def records_gradients(self) -> bool:
        return nn.is_grad_enabled()

    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call


def _is_floating(tensor: Any) -> bool:
    name: str = tensor.data.dtype.name
    return name.startswith(("float", "bfloat"))


def _differentiable(outputs: object) -> Iterator[Any]:
    for leaf in leaves(outputs):
        if isinstance(leaf, nn.Tensor) and leaf.requires_grad:
            yield leaf
