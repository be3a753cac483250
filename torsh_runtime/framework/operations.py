"""Operations on values that frameworks have in their graphs, each with its backward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

Array: TypeAlias = Any
"""An array of numpy or cupy, or a tensor of torch, within its autograd function."""


class Operation(ABC):
    """What can be done to an array within a graph."""

    is_traceable: ClassVar[bool] = False
    """Whether torch.compile can have traced() in its graphs."""

    @abstractmethod
    def __call__(self, array: Array) -> Array:
        """What this rank gets. ConfigError for an array that does not fit."""

    @property
    @abstractmethod
    def adjoint(self) -> Operation:
        """What makes of the gradient of what this rank got that of what it had."""

    @property
    def is_in_place(self) -> bool:
        """Whether what this rank gets takes the place of what it has, of which nobody needs that.
        Only where gradients stay as they are."""
        return False

    @property
    def is_identity(self) -> bool:
        """Whether this rank gets what it has itself."""
        return False

    def traced(self, tensor: Any) -> Any:
        """The result in a graph of torch.compile."""
        raise NotImplementedError(f"torch.compile knows no {type(self).__name__}")


class JointOperation(ABC):
    """What makes an array of several, and their gradients of its gradient. Arrays are numpy's,
    cupy's or torch's, and stay as they are.
    """

    @abstractmethod
    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        """The result, and what backward needs."""

    @abstractmethod
    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        """For each array of forward its gradient."""
