"""What a stage needs of its framework: leaves, gradients, and backward passes in two parts."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torsh_runtime.parallel.regions.arrays import copied


class Spec(NamedTuple):
    """What a tensor that comes from another stage is like."""

    shape: tuple[int, ...]
    dtype: str
    wants_gradient: bool

    @property
    def is_continuous(self) -> bool:
        """Whether such a tensor can want gradients."""
        return "float" in self.dtype or "complex" in self.dtype


class Autograd(ABC):
    """`values` are what collectives take: arrays, or tensors that are not in any graph."""

    @abstractmethod
    def leaf(self, values: Any, wants_gradient: bool) -> Any:
        """A tensor of this memory at which a backward pass ends."""

    @abstractmethod
    def values(self, tensor: Any) -> Any:
        """Of a tensor, row-major. TypeError for what is no tensor."""

    def lasting(self, tensor: Any) -> Any:
        """values() that stay as they are until somebody has taken them: a copy of what is in no
        graph, as a buffer that the next microbatch changes."""
        values = self.values(tensor)
        return values if tensor.requires_grad else copied(values)

    @abstractmethod
    def spec(self, tensor: Any) -> Spec:
        """What another rank has to know to receive it."""

    def beyond(self, tensor: Any) -> str:
        """What it is besides its values, which whoever receives those does not get; "" if it is
        nothing else."""
        return ""

    @abstractmethod
    def nbytes(self, spec: Spec) -> int:
        """Of such a tensor."""

    @abstractmethod
    def empty(self, spec: Spec) -> Any:
        """Values to receive such a tensor into, where the stage's parameters are."""

    @abstractmethod
    def zeros(self, spec: Spec) -> Any:
        """The gradient of what nothing depends on."""

    @abstractmethod
    def gradient(self, leaf: Any) -> Any | None:
        """The values of the gradient that has been accumulated."""

    @abstractmethod
    def weight(self, loss: Any, weight: float) -> Any:
        """Values of the loss's shape: its gradient, where it counts so much."""

    @abstractmethod
    def number(self, loss: Any) -> float:
        """Its value. ValueError unless it has one element."""

    @abstractmethod
    def backward(self, outputs: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Accumulate gradients of all leaves."""

    @abstractmethod
    def backward_inputs(
        self, outputs: Sequence[Any], gradients: Sequence[Any], inputs: Sequence[Any]
    ) -> Callable[[], None]:
        """Accumulate those of `inputs`, and of what cannot be parted from them; what is returned
        accumulates the others. The outputs come from within splitting()."""

    @abstractmethod
    def splitting(self) -> AbstractContextManager[object]:
        """A block for forward passes whose backward passes are in two parts."""

    def unfit(self) -> str:
        """Why nothing that is computed now could be differentiated; "" if it can be."""
        return ""

    @abstractmethod
    def recording(self, enabled: bool) -> AbstractContextManager[object]:
        """A block in which what is computed can be differentiated, or not."""

    @abstractmethod
    def random_state(self) -> Any:
        """Of the generator behind dropout."""

    @abstractmethod
    def set_random_state(self, state: Any) -> None:
        """Go on from it."""

    @abstractmethod
    def joined(self, outputs: Sequence[Any]) -> Any:
        """Along dimension 0."""

    @abstractmethod
    def held_bytes(self, forward: Callable[[], object]) -> int:
        """What a backward pass needs of this forward pass, in bytes, besides parameters."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until what was begun on a device is done."""


def autograd_of(module: Any, like: Any = None) -> Autograd:
    """That of a model of torch or of torsh_runtime.nn, which computes where `like` is; None: where
    its parameters are."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(module, torch.nn.Module):
        from torsh_runtime.parallel.pipeline.torch_autograd import TorchAutograd

        return TorchAutograd(module, like)
    from torsh_runtime.parallel.pipeline.nn_autograd import NnAutograd

    return NnAutograd(module, like)
