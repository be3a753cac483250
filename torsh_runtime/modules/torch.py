"""torch's models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from torsh_runtime.arrays.torch import host_view
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.shared import empty_shared
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch import parts
from torsh_runtime.integrations.torch.allocator import give_freed_memory_back, tune_allocator
from torsh_runtime.integrations.torch.marking import mark_optimizers
from torsh_runtime.integrations.torch.watched import watched_type
from torsh_runtime.modules.base import Call, ModuleAdapter, Named, leaves, mapped
from torsh_runtime.modules.parts import Part, Same

Tensor = torch.Tensor
_engine: Any = torch.autograd.Variable._execution_engine
_C: Any = torch._C


class OnGradient:
    """A hook of on_gradient(), which is not the program's own."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, _: Tensor) -> None:
        self._call()


def part(flat: Tensor, start: int, like: Tensor) -> Tensor:
    """As TorchModule.part()."""
    # torch keeps strides in a copy if the elements fill their memory and do not overlap.
    if torch.empty_like(like, device="meta").stride() == like.stride():
        return flat.as_strided(like.size(), like.stride(), flat.storage_offset() + start)
    return flat[start : start + like.numel()].view(like.shape)


class TorchModule(ModuleAdapter[Tensor]):
    """A torch.nn.Module. See ModuleAdapter."""

    module_class = torch.nn.Module
    framework = "torch"

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        tune_allocator()
        mark_optimizers()

    def parameters(self) -> Named[Tensor]:
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]

    def constants(self) -> Named[Tensor]:
        return [(name, p) for name, p in self.module.named_parameters() if not p.requires_grad]

    def buffers(self) -> Named[Tensor]:
        return list(self.module.named_buffers())

    def modules(self) -> Named[Any]:
        return list(self.module.named_modules())

    def own_parameters(self, module: Any) -> Named[Tensor]:
        return list(module.named_parameters(recurse=False))

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def kind(self, tensor: Tensor) -> tuple[str, str]:
        return str(tensor.dtype).removeprefix("torch."), str(tensor.device)

    def values(self, tensor: Tensor) -> Tensor:
        return tensor.detach()

    def flat(
        self, like: Tensor, size: int, group: ProcessGroup, dtype: str | None = None
    ) -> Tensor:
        kind: torch.dtype = like.dtype if dtype is None else getattr(torch, dtype)
        if like.device.type != "cpu":
            return torch.empty(size, dtype=kind, device=like.device)
        return torch.from_numpy(empty_shared(size * kind.itemsize, "uint8", group)).view(kind)

    def common(
        self, like: Tensor, size: int, group: ProcessGroup, dtype: str | None = None
    ) -> Tensor | None:
        kind: torch.dtype = like.dtype if dtype is None else getattr(torch, dtype)
        if like.device.type != "cpu":
            return None
        memory = group.common_memory(size * kind.itemsize)
        if memory is None:
            return None
        return torch.from_numpy(np.frombuffer(memory, np.uint8)).view(kind)

    def releasable(self, like: Tensor, size: int, dtype: str | None = None) -> Tensor:
        kind: torch.dtype = like.dtype if dtype is None else getattr(torch, dtype)
        return torch.empty(size, dtype=kind, device=like.device)

    def release(self, flat: Tensor) -> None:
        flat.untyped_storage().resize_(0)

    def allocate(self, flat: Tensor) -> None:
        flat.untyped_storage().resize_(flat.nbytes)

    def flattened(self, tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(-1)

    def part(self, flat: Tensor, start: int, like: Tensor) -> Tensor:
        return part(flat, start, like)

    def shaped(self, flat: Tensor, start: int, shape: tuple[int, ...]) -> Tensor:
        return flat[start : start + math.prod(shape)].view(shape)

    def slice(self, flat: Tensor, start: int, end: int) -> Tensor:
        return flat[start:end]

    @torch.no_grad()
    def copy(self, target: Tensor, source: Tensor) -> None:
        if target.is_sparse:
            source = source.to_sparse(target.sparse_dim())
        elif source.is_sparse:
            source = source.to_dense()
        target.copy_(source)

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return tensor.detach().to(getattr(torch, dtype))

    def cast_buffers(self, dtype: str) -> None:
        for _, buffer in self.buffers():
            if buffer.is_floating_point():
                buffer.data = self.cast(buffer, dtype)

    def cast_inputs(self, inputs: Any, dtype: str) -> Any:
        kind: torch.dtype = getattr(torch, dtype)

        def cast(value: Any) -> Any:
            is_cast = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(kind) if is_cast else value

        return mapped(cast, inputs)

    @torch.no_grad()
    def add(self, target: Tensor, source: Tensor) -> None:
        target.add_(source)

    def clone(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    def like(self, parameter: Tensor, values: Tensor) -> Tensor:
        return values.detach().to(parameter.dtype, copy=True)

    def itemsize(self, dtype: str) -> int:
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise ConfigError(f"{dtype!r} is no dtype of torch's")
        return kind.itemsize

    @torch.no_grad()
    def fill(self, tensor: Tensor, value: float) -> None:
        tensor.fill_(value)

    @torch.no_grad()
    def scale(self, tensor: Tensor, factor: float) -> None:
        tensor.mul_(factor)

    def is_finite(self, tensor: Tensor) -> bool:
        return bool(torch.isfinite(tensor.detach()).all())

    def array(self, flat: Tensor) -> Any:
        if flat.device.type == "cpu":
            return host_view(flat)
        return import_module("cupy").asarray(flat)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        return parameter.grad

    def set_gradient(self, parameter: Tensor, gradient: Tensor | None) -> None:
        # One of its own: `parameter.grad.data = ...` moves the object to other memory.
        if gradient is None or gradient.dtype is parameter.dtype:
            parameter.grad = None if gradient is None else gradient.detach()
        else:  # which torch allows to none but a gradient that is there
            parameter.grad = parameter.detach()
            parameter.grad.data = gradient.detach()

    def set_values(self, parameter: Tensor, values: Tensor) -> None:
        parameter.data = values

    def is_at(self, gradient: Tensor, view: Tensor) -> bool:
        return (
            gradient.layout is torch.strided
            and gradient.data_ptr() == view.data_ptr()
            and gradient.dtype is view.dtype
            and gradient.stride() == view.stride()
        )

    def mark(self, parameter: Tensor, mark: Part | Same) -> None:
        parts.mark(parameter, mark)

    def watched(self, use: Callable[[Tensor], None]) -> Any:
        return watched_type(use)

    def watch(self, parameter: Tensor, kind: Any) -> None:
        if kind is None:
            if getattr(type(parameter), "is_watched", False):
                parameter.__class__ = torch.nn.Parameter
        elif type(parameter) is torch.nn.Parameter:
            parameter.__class__ = kind

    def gives_sparse_gradients(self, module: Any) -> bool:
        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        return isinstance(module, kinds) and module.sparse and module.weight.requires_grad

    def on_state_dict(self, module: Any, before: Call) -> None:
        module.register_state_dict_pre_hook(lambda *_: before())

    def wants_gradient(self, parameter: Tensor) -> bool:
        return bool(parameter.requires_grad)

    def communicates_in_backward(self) -> bool:
        synced = any(isinstance(each, torch.nn.SyncBatchNorm) for each in self.module.modules())
        return synced or super().communicates_in_backward()

    def on_gradient(self, parameter: Tensor, call: Call) -> Call:
        remember: Any = parameter.register_post_accumulate_grad_hook
        remove: Call = remember(OnGradient(call)).remove
        return remove

    def on_forward(self, module: Any, before: Call, after: Callable[[Any], None]) -> None:
        untraced = self.untraced
        module.register_forward_pre_hook(untraced(lambda *_: before()), prepend=True)
        module.register_forward_hook(untraced(lambda _, __, outputs: after(outputs)))

    def checkpoint(self, call: Any, inputs: Any, named: Any) -> Any:
        return checkpoint(call, *inputs, use_reentrant=False, **named)

    def is_called(self, module: Any) -> bool:
        # MultiheadAttention's out_proj, whose weight that uses itself
        is_used = isinstance(module, torch.nn.modules.linear.NonDynamicallyQuantizableLinear)
        return super().is_called(module) and not is_used

    def is_meta(self, module: Any) -> bool:
        return any(each.is_meta for each in _own_tensors(module))

    def own_initialiser(self, module: Any) -> Callable[[Any], object] | None:
        kind = type(module)  # MultiheadAttention has the latter
        found = (getattr(kind, name, None) for name in ("reset_parameters", "_reset_parameters"))
        return next(filter(None, found), None)

    @torch.no_grad()
    def materialise(self, module: Any, initialise: Callable[[Any], object]) -> None:
        for each in _own_tensors(module):
            if each.is_meta:
                self.give_memory(each, torch.empty_like(each, device="cpu"))
        initialise(module)

    def give_memory(self, tensor: Tensor, values: Tensor) -> None:
        """Let what is on the meta device have these values; the object stays, of which others may
        know, and what is noted at it."""
        memory: Any = values
        if isinstance(tensor, torch.nn.Parameter):
            memory = torch.nn.Parameter(values, tensor.requires_grad)
        vars(memory).update(vars(tensor))
        swap: Any = torch.utils.swap_tensors
        swap(tensor, memory)

    def at_end_of_backward(self, call: Call) -> None:
        _engine.queue_callback(call)

    def on_backward(self, outputs: object, call: Call) -> None:
        def begin(_: object) -> None:
            if _engine.is_checkpoint_valid():  # else it is autograd.grad(), which accumulates none
                call()

        for tensor in _differentiable(outputs):
            if not tensor.is_leaf:  # hooks would pile up on those that stay
                remember: Any = tensor.register_hook
                remember(begin)

    def in_backward(self) -> bool:
        return bool(_C._current_graph_task_id() != -1)

    def is_nested(self) -> bool:
        return _C._current_autograd_node() is not None

    def reached(self, outputs: object) -> set[int]:
        found: set[int] = set()
        pending = [tensor.grad_fn for tensor in _differentiable(outputs) if tensor.grad_fn]
        found |= {id(tensor) for tensor in _differentiable(outputs) if tensor.is_leaf}
        seen = set(pending)
        while pending:
            node: Any = pending.pop()
            if hasattr(node, "variable"):
                found.add(id(node.variable))
            after = {each for each, _ in node.next_functions if each is not None} - seen
            seen |= after
            pending.extend(after)
        return found

    def records_gradients(self) -> bool:
        return torch.is_grad_enabled()

    def let_go_of_freed(self) -> None:
        give_freed_memory_back()

    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        disable: Any = torch.compiler.disable
        disabled: Callable[..., Any] = disable(call)
        return disabled


def _own_tensors(module: Any) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _differentiable(outputs: object) -> Iterator[Tensor]:
    for leaf in leaves(outputs):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            yield leaf
