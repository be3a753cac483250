"""Abstracts a stage's framework: leaves, gradients, and backward passes in two parts."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torsh_runtime.parallel.regions.arrays import copied


class Spec(NamedTuple):
    """Describes a tensor that comes from another stage."""

    shape: tuple[int, ...]
    dtype: str
    wants_gradient: bool

    @property
    def is_continuous(self) -> bool:
        """Return whether such a tensor can want gradients."""
        return "float" in self.dtype or "complex" in self.dtype


class Autograd(ABC):
    """Computes for a stage in its framework. `values` are what collectives take: arrays, or tensors
    outside any graph.
    """

    @abstractmethod
    def leaf(self, values: Any, wants_gradient: bool) -> Any:
        """Return a tensor of this memory at which a backward pass ends."""

    @abstractmethod
    def values(self, tensor: Any) -> Any:
        """Return the values of a tensor, row-major. TypeError for other objects."""

    def lasting(self, tensor: Any) -> Any:
        """Return values() that do not change until they have been taken.

        Values outside any graph are copied, such as those of a buffer that the next microbatch
        changes.
        """
        values = self.values(tensor)
        return values if tensor.requires_grad else copied(values)

    @abstractmethod
    def spec(self, tensor: Any) -> Spec:
        """Return what another rank has to know to receive the tensor."""

    def beyond(self, tensor: Any) -> str:
        """Describe what the tensor is besides its values, which a receiver does not get; "" if
        nothing.
        """
        return ""

    @abstractmethod
    def nbytes(self, spec: Spec) -> int:
        """Return the number of bytes of such a tensor."""

    @abstractmethod
    def empty(self, spec: Spec) -> Any:
        """Return memory for the values of such a tensor, where the stage's parameters are."""

    @abstractmethod
    def zeros(self, spec: Spec) -> Any:
        """Return the gradient of a tensor on which nothing depends."""

    @abstractmethod
    def gradient(self, leaf: Any) -> Any | None:
        """Return the values of the leaf's accumulated gradient; None if it has none."""

    @abstractmethod
    def weight(self, loss: Any, weight: float) -> Any:
        """Return the gradient of a loss with this weight: values of the loss's shape."""

    @abstractmethod
    def number(self, loss: Any) -> float:
        """Return the loss as a number. ValueError unless it has one element."""

    @abstractmethod
    def backward(self, outputs: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Accumulate the gradients of all leaves."""

    @abstractmethod
    def backward_inputs(
        self, outputs: Sequence[Any], gradients: Sequence[Any], inputs: Sequence[Any]
    ) -> Callable[[], None]:
        """Accumulate the gradients of `inputs`, and return a function for the other gradients.

        Gradients that cannot be separated from those of `inputs` are accumulated at once, too. The
        outputs must have been computed within splitting().
        """

    @abstractmethod
    def splitting(self) -> AbstractContextManager[object]:
        """Prepare, within the block, forward passes whose backward passes are in two parts."""

    def unfit(self) -> str:
        """Return why computations cannot be differentiated at present; "" if they can."""
        return ""

    @abstractmethod
    def recording(self, enabled: bool) -> AbstractContextManager[object]:
        """Enable or disable differentiation of what is computed within the block."""

    @abstractmethod
    def random_state(self) -> Any:
        """Return the state of the generator that dropout uses."""

    @abstractmethod
    def set_random_state(self, state: Any) -> None:
        """Restore the state of the generator that dropout uses."""

    @abstractmethod
    def joined(self, outputs: Sequence[Any]) -> Any:
        """Concatenate outputs along dimension 0."""

    @abstractmethod
    def held_bytes(self, forward: Callable[[], object]) -> int:
        """Return how many bytes a backward pass needs of this forward pass, besides parameters."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until the device has done all its work."""


def autograd_of(module: Any, like: Any = None) -> Autograd:
    """Return the Autograd of a model of torch or of torsh_runtime.nn.

    It computes on the device of `like`; None: on that of the parameters.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(module, torch.nn.Module):
        from torsh_runtime.parallel.pipeline.torch_autograd import TorchAutograd

        return TorchAutograd(module, like)
    from torsh_runtime.parallel.pipeline.nn_autograd import NnAutograd

    return NnAutograd(module, like)
