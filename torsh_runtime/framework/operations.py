"""Operations on values that frameworks have in their graphs, each with its backward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from torsh_runtime.framework.values import Values

Array: TypeAlias = Values
"""An array of numpy or cupy, or a tensor of torch, within its autograd function."""


class Operation(ABC):
    """Describes an operation on an array within a graph."""

    is_traceable: ClassVar[bool] = False
    """Tells that torch.compile can have traced() in its graphs."""

    @abstractmethod
    def __call__(self, array: Array) -> Array:
        """Return what this rank gets. Raises ConfigError for an array that does not fit."""

    @property
    @abstractmethod
    def adjoint(self) -> Operation:
        """Return the operation that turns the gradient of the result into that of the input."""

    @property
    def is_in_place(self) -> bool:
        """Return whether the result takes the memory of the input, whose values nothing else
        needs. This is only possible if gradients stay as they are."""
        return False

    @property
    def is_identity(self) -> bool:
        """Return whether this rank gets its own input."""
        return False

    def traced(self, tensor: Any) -> Any:
        """Return the result in a graph of torch.compile."""
        raise NotImplementedError(f"torch.compile knows no {type(self).__name__}")


class JointOperation(ABC):
    """Describes an operation that makes one array of several, and their gradients of its
    gradient. Arrays are numpy's, cupy's or torch's, and are not changed."""

    @abstractmethod
    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        """Return the result, and what backward needs."""

    @abstractmethod
    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        """Return the gradient of each array of forward."""
