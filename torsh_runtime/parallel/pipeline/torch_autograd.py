"""Computes for stages that are torch's modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from torsh_runtime.parallel.pipeline.autograd import Autograd, Spec
from torsh_runtime.parallel.pipeline.torch_splitting import Later, Splitting, carry_out

Tensor = torch.Tensor
_run_backward: Any = torch.autograd.graph._engine_run_backward


class TorchAutograd(Autograd):
    """Computes for stages that are torch's modules, on one device."""

    def __init__(self, module: torch.nn.Module, like: Tensor | None = None) -> None:
        first = next(module.parameters(), None) if like is None else like
        self._device = torch.device("cpu") if first is None else first.device
        self._parameters = {each.untyped_storage().data_ptr() for each in module.parameters()}
        self._later = Later()

    def leaf(self, values: Any, wants_gradient: bool) -> Any:
        return values.detach().requires_grad_(wants_gradient)

    def values(self, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"a {type(tensor).__qualname__} is no tensor")
        return _resolved(tensor.detach())

    def spec(self, tensor: Any) -> Spec:
        self.values(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Spec(tuple(tensor.shape), dtype, bool(tensor.requires_grad))

    def beyond(self, tensor: Any) -> str:
        own = [name for name in vars(tensor) if not name.startswith("_")]
        if own:
            return f"{type(tensor).__qualname__} with an attribute {own[0]!r}"
        kind, plain = type(tensor), (Tensor, torch.nn.Parameter)
        of_own = any(
            getattr(kind, name) != getattr(Tensor, name)
            for name in ("__torch_function__", "__torch_dispatch__")
        )
        if kind not in plain and of_own:
            return f"{kind.__qualname__}, a subclass of torch.Tensor with operations of its own"
        return "" if tensor.layout is torch.strided else f"tensor with the layout {tensor.layout}"

    def nbytes(self, spec: Spec) -> int:
        itemsize: int = getattr(torch, spec.dtype).itemsize
        return math.prod(spec.shape) * itemsize

    def empty(self, spec: Spec) -> Any:
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=self._device)

    def zeros(self, spec: Spec) -> Any:
        return torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=self._device)

    def gradient(self, leaf: Any) -> Any | None:
        return None if leaf.grad is None else _resolved(leaf.grad)

    def weight(self, loss: Any, weight: float) -> Any:
        return torch.full_like(loss.detach(), weight)

    def number(self, loss: Any) -> float:
        return float(loss.detach().item())

    def backward(self, outputs: Sequence[Any], gradients: Sequence[Any]) -> None:
        # torch.autograd.backward() loads sympy to compare shapes, which takes 35 MiB for good.
        _run_backward(
            tuple(outputs),
            tuple(gradients),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )

    def backward_inputs(
        self, outputs: Sequence[Any], gradients: Sequence[Any], inputs: Sequence[Any]
    ) -> Callable[[], None]:
        with self._later.collecting() as calls:
            self.backward(outputs, gradients)
        return partial(carry_out, calls)

    def splitting(self) -> AbstractContextManager[object]:
        mode: AbstractContextManager[object] = Splitting(self._later)
        return mode

    def unfit(self) -> str:
        if not torch.is_inference_mode_enabled():
            return ""
        return "step() in torch.inference_mode() has no gradients: call it outside, or evaluate()"

    def recording(self, enabled: bool) -> AbstractContextManager[object]:
        return torch.set_grad_enabled(enabled)

    def random_state(self) -> Any:
        on_device = torch.cuda.get_rng_state() if self._device.type == "cuda" else None
        return torch.get_rng_state(), on_device

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])

    def joined(self, outputs: Sequence[Any]) -> Any:
        return torch.cat([*outputs])

    def held_bytes(self, forward: Callable[[], object]) -> int:
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._parameters:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            results = forward()
        del results
        return sum(sizes.values())

    def synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _resolved(tensor: Tensor) -> Tensor:
    """Make a tensor row-major, and carry out conjugates or negatives that torch has only noted."""
    return tensor.resolve_conj().resolve_neg().contiguous()
