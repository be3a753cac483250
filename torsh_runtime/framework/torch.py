"""The port of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from numpy.typing import NDArray
from torch.utils.checkpoint import checkpoint

from torsh_runtime.arrays.subclasses import is_made_of_others
from torsh_runtime.arrays.torch import host_view, part_like
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import torch_foreach, torch_offload
from torsh_runtime.framework.parts import Part, Same
from torsh_runtime.framework.protocol import Call, Initialise
from torsh_runtime.framework.torch_graph import applied, applied_jointly, run_backward
from torsh_runtime.framework.torch_pool import TorchPool
from torsh_runtime.framework.torch_splitting import TorchSplitter
from torsh_runtime.integrations.torch import parts
from torsh_runtime.integrations.torch.allocator import give_freed_memory_back, tune_allocator
from torsh_runtime.integrations.torch.marking import mark_optimizers
from torsh_runtime.integrations.torch.marks import marks_of
from torsh_runtime.integrations.torch.optimizers import check_spread, settle
from torsh_runtime.integrations.torch.watched import watched_type

Tensor = torch.Tensor
Module = torch.nn.Module
_engine: Any = torch.autograd.Variable._execution_engine
_C: Any = torch._C
_CPU = torch.device("cpu")


class TorchFramework:
    """Implements Framework for torch."""

    name = "torch"
    tensor_type = Tensor
    module_type = Module
    functional: Any = torch.nn.functional
    foreach: Any = torch_foreach
    has_functional_call = True

    def __init__(self) -> None:
        tune_allocator()
        mark_optimizers()

    # Values and their memory

    def dtype(self, name: str) -> torch.dtype:
        found = getattr(torch, name, None)
        if not isinstance(found, torch.dtype):
            raise ConfigError(f"{name!r} is no dtype of torch's")
        return found

    def cast(self, values: Tensor, dtype: str) -> Tensor:
        return values.detach().to(self.dtype(dtype))

    def empty(self, size: int | tuple[int, ...], dtype: str, like: Tensor | None) -> Tensor:
        device = _CPU if like is None else like.device
        return torch.empty(size, dtype=self.dtype(dtype), device=device)

    releasable = empty

    def zeros(self, size: tuple[int, ...], dtype: str, like: Tensor | None) -> Tensor:
        device = _CPU if like is None else like.device
        return torch.zeros(size, dtype=self.dtype(dtype), device=device)

    def full_like(self, tensor: Tensor, value: float) -> Tensor:
        return torch.full_like(tensor.detach(), value)

    def from_numpy(self, memory: Any, dtype: str) -> Tensor:
        return torch.from_numpy(memory).view(self.dtype(dtype))

    def release(self, values: Tensor) -> None:
        values.untyped_storage().resize_(0)

    def allocate(self, values: Tensor) -> None:
        values.untyped_storage().resize_(values.nbytes)

    def memory_pool(self, like: Tensor) -> TorchPool | None:
        return TorchPool(like.device) if like.is_cuda else None

    def holders(self, values: Tensor) -> int:
        count: int = _C._storage_Use_Count(values.untyped_storage()._cdata)
        return count

    @torch.no_grad()
    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        torch._foreach_copy_([*targets], [*sources])

    def part(self, flat: Tensor, start: int, like: Tensor) -> Tensor:
        return part_like(flat, start, like)

    offloads = True

    def pinned(self, size: int, dtype: str) -> Tensor:
        return torch_offload.pinned(size, self.dtype(dtype))

    aside = staticmethod(torch_offload.aside)
    copy_without_waiting = staticmethod(torch_offload.copy_without_waiting)
    moment = staticmethod(torch_offload.moment)

    def array(self, flat: Tensor) -> Any:
        return host_view(flat) if flat.device.type == "cpu" else import_module("cupy").asarray(flat)

    def following(self, flat: Tensor) -> AbstractContextManager[object]:
        if flat.device.type != "cuda" or find_spec("cupy") is None:
            return nullcontext()
        stream = torch.cuda.current_stream(flat.device)
        cupy: Any = import_module("cupy")
        found: AbstractContextManager[object] = cupy.cuda.ExternalStream(
            stream.cuda_stream, flat.device.index
        )
        return found

    def dense(self, values: Tensor) -> Tensor:
        return values.to_dense() if values.is_sparse else values

    def let_go_of_freed(self) -> None:
        give_freed_memory_back()

    draws_for_whole = False
    initial_seed = staticmethod(torch.initial_seed)

    def random_number(self) -> int:
        return int(torch.randint(1 << 62, ()))

    def get_rng_state(self, like: Tensor | None) -> tuple[Tensor, Tensor | None]:
        is_on_gpu = like is not None and like.device.type == "cuda"
        return torch.get_rng_state(), torch.cuda.get_rng_state() if is_on_gpu else None

    def set_rng_state(self, state: tuple[Tensor, Tensor | None]) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])

    def synchronize(self, like: Tensor | None) -> None:
        if like is not None and like.device.type == "cuda":
            torch.cuda.current_stream(like.device).synchronize()

    # Tensors

    def tensor(self, values: Tensor) -> Tensor:
        return values

    def parameter(self, tensor: Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(tensor)

    def uniform(self, shape: tuple[int, ...], bound: float, dtype: Any) -> Tensor:
        return torch.empty(shape, dtype=dtype).uniform_(-bound, bound)

    def as_tensor(self, array: NDArray[Any], like: Tensor) -> Tensor:
        return torch.from_numpy(array).to(like)

    def numpy(self, tensor: Tensor) -> NDArray[Any]:
        host = tensor.detach().cpu()
        found: NDArray[Any] = (host.double() if host.is_floating_point() else host).numpy()
        return found

    def leaf(self, values: Tensor, requires_grad: bool) -> Tensor:
        return values.detach().requires_grad_(requires_grad)

    def values(self, tensor: Tensor) -> Tensor:
        # torch only notes conjugates and negatives
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def beyond(self, tensor: Tensor) -> str:
        kind, plain = type(tensor), (Tensor, torch.nn.Parameter)
        if own := [name for name in vars(tensor) if not name.startswith("_")]:
            return f"{kind.__qualname__} with an attribute {own[0]!r}"
        of_own = any(
            getattr(kind, name) != getattr(Tensor, name)
            for name in ("__torch_function__", "__torch_dispatch__")
        )
        if kind not in plain and of_own:
            return f"{kind.__qualname__}, a subclass of torch.Tensor with operations of its own"
        return "" if tensor.layout is torch.strided else f"tensor with the layout {tensor.layout}"

    def set_gradient(self, parameter: Tensor, gradient: Tensor) -> None:
        # One of its own: `parameter.grad.data = ...` moves the object to other memory.
        if gradient.dtype is parameter.dtype:
            parameter.grad = gradient.detach()
        else:  # which torch allows to none but a gradient that is there
            parameter.grad = parameter.detach()
            parameter.grad.data = gradient.detach()

    @torch.no_grad()
    def write_gradient(self, gradient: Tensor, values: Tensor) -> None:
        is_sparse = gradient.is_sparse
        gradient.copy_(values.to_sparse(gradient.sparse_dim()) if is_sparse else values)

    def is_at(self, gradient: Tensor, view: Tensor) -> bool:
        return (
            gradient.layout is torch.strided
            and gradient.data_ptr() == view.data_ptr()
            and gradient.dtype is view.dtype
            and gradient.stride() == view.stride()
        )

    def mark(self, parameter: Tensor, mark: Part | Same) -> None:
        parts.mark(parameter, mark)

    settle = staticmethod(settle)
    check_spread = staticmethod(check_spread)

    def is_piece_of_wrapper(self, parameter: Tensor) -> bool:
        marks = marks_of(parameter)
        return marks is not None and any(part.own is not None for part in marks.parts)

    is_made_of_others = staticmethod(is_made_of_others)

    def watched(self, use: Callable[[Any], None]) -> type | None:
        found: type = watched_type(use)
        return found

    def watch(self, parameter: Tensor, kind: type | None) -> None:
        if kind is None:
            if getattr(type(parameter), "is_watched", False):
                parameter.__class__ = torch.nn.Parameter
        elif type(parameter) is torch.nn.Parameter:
            parameter.__class__ = kind

    # Modules

    def functional_call(
        self, module: Module, parameters: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
    ) -> Any:
        return torch.func.functional_call(module, dict(parameters), inputs)

    def is_called(self, module: Module) -> bool:
        # MultiheadAttention's out_proj, whose weight that uses itself
        is_used = isinstance(module, torch.nn.modules.linear.NonDynamicallyQuantizableLinear)
        return type(module).forward is not Module.forward and not is_used

    def gives_sparse_gradients(self, module: Module) -> bool:
        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        return isinstance(module, kinds) and module.sparse and module.weight.requires_grad

    def communicates_in_backward(self, module: Module) -> bool:
        return isinstance(module, torch.nn.SyncBatchNorm)

    def device(self, given: Any) -> str:
        try:
            return str(torch.device(given))
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"device {given!r} is none of torch's: {error}") from error

    @torch.no_grad()
    def materialise(self, module: Module, initialise: Initialise, device: str = "cpu") -> None:
        for each in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if each.is_meta:
                self.give_memory(each, torch.empty_like(each, device=device))
        initialise(module)

    def give_memory(self, tensor: Tensor, values: Tensor) -> None:
        """Give a tensor on the meta device these values. The object stays, because others may
        know it, and so does what is noted at it."""
        memory: Any = values
        if isinstance(tensor, torch.nn.Parameter):
            memory = torch.nn.Parameter(values, tensor.requires_grad)
        vars(memory).update(vars(tensor))
        swap: Any = torch.utils.swap_tensors
        swap(tensor, memory)

    def on_state_dict(self, module: Module, before: Call) -> None:
        remember: Any = module.register_state_dict_pre_hook
        remember(lambda *_: before())

    def on_broken_forward(self, module: Module, call: Call) -> None:
        def after(_: Any, __: Any, outputs: Any) -> None:
            if outputs is None and sys.exc_info()[0] is not None:
                call()

        module.register_forward_hook(self.untraced(after), always_call=True)

    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        disable: Any = torch.compiler.disable
        disabled: Callable[..., Any] = disable(call)
        return disabled

    def checkpoint(self, call: Callable[..., Any], inputs: Any, named: Any) -> Any:
        return checkpoint(call, *inputs, use_reentrant=False, **named)

    offloading = staticmethod(torch_offload.offloading)

    # Graphs

    apply = staticmethod(applied)
    apply_jointly = staticmethod(applied_jointly)

    def cat(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        return torch.cat([*tensors], dim)

    is_grad_enabled = staticmethod(torch.is_grad_enabled)

    is_inference_mode_enabled = staticmethod(torch.is_inference_mode_enabled)

    def set_grad_enabled(self, mode: bool) -> AbstractContextManager[object]:
        return torch.set_grad_enabled(mode)

    backward = staticmethod(run_backward)

    def splitter(self) -> TorchSplitter:
        return TorchSplitter()

    def held_bytes(self, forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
        own = {each.untyped_storage().data_ptr() for each in parameters}
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            results = forward()
        del results
        return sum(sizes.values())

    def in_backward(self) -> bool:
        return bool(_C._current_graph_task_id() != -1)

    def is_nested(self) -> bool:
        return _C._current_autograd_node() is not None

    def at_end_of_backward(self, call: Call) -> None:
        _engine.queue_callback(call)

    def on_backward(self, outputs: Iterable[Tensor], call: Call) -> None:
        def begin(_: object) -> None:
            if _engine.is_checkpoint_valid():  # else it is autograd.grad(), which accumulates none
                call()

        for tensor in outputs:
            if not tensor.is_leaf:  # hooks would pile up on those that stay
                remember: Any = tensor.register_hook
                remember(begin)

    def reached(self, outputs: Sequence[Tensor]) -> set[int]:
        found = {id(tensor) for tensor in outputs if tensor.is_leaf}
        pending = [tensor.grad_fn for tensor in outputs if tensor.grad_fn]
        seen = set(pending)
        while pending:
            node: Any = pending.pop()
            if hasattr(node, "variable"):
                found.add(id(node.variable))
            after = {each for each, _ in node.next_functions if each is not None} - seen
            seen |= after
            pending.extend(after)
        return found


FRAMEWORK: Any = TorchFramework()
