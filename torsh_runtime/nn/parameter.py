"""Defines tensors that a module registers when they become its attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from torsh_runtime.nn.arrays import Array, is_array, is_floating
from torsh_runtime.nn.graph import Variable
from torsh_runtime.nn.tensor import Tensor


def _array(data: Any) -> Any:
    return data.data if isinstance(data, Variable) else data


class Parameter(Tensor):
    """Represents a leaf that is trained.

    It shares the memory of its data. A module registers it when it becomes an attribute.

    Example:
        ```python
        self.scale = tr.nn.Parameter(np.ones(8, np.float32))
        ```
    """

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        """Create the parameter.

        Args:
            data: A tensor or an array.
            requires_grad: Whether it gets gradients.
        """
        super().__init__(_array(data), requires_grad)


class Buffer(Tensor):
    """Holds a module's state that is not trained.

    It shares the memory of its data. A module registers it when it becomes an attribute.

    Example:
        ```python
        self.mean = tr.nn.Buffer(np.zeros(8, np.float32))
        ```
    """

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        """Create the buffer.

        Args:
            data: A tensor or an array.
            persistent: Whether it is a part of state_dict().
        """
        super().__init__(_array(data))
        self.persistent = persistent


def array_of(value: Any) -> Array:
    """Return the array of a tensor, of an array or of numbers."""
    if isinstance(value, Variable):
        return value.data
    return value if is_array(value) else np.asarray(value)


def as_dtype(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return the array in this dtype if it is of floating point numbers, else as it is."""
    return array.astype(dtype, copy=False) if is_floating(array.dtype) else array
