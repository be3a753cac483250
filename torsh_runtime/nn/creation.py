"""Makes tensors of arrays and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torsh_runtime.nn.arrays import (
    Array,
    array_module,
    dtype_named,
    is_array,
)
from torsh_runtime.nn.graph import Variable

if TYPE_CHECKING:
    pass
from torsh_runtime.nn.tensor import Tensor


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of a copy of the data.

    Args:
        data: A tensor, an array, a number or nested lists of numbers.
        dtype: The dtype; None: floating point numbers of Python's become float32, and arrays keep
            theirs.
        requires_grad: Whether it gets gradients.

    Example:
        ```python
        tr.nn.tensor([[1.0, 2.0], [3.0, 4.0]]).shape  # (2, 2)
        ```
    """
    array = data.data.copy() if isinstance(data, Variable) else data
    xp = array_module(array)
    pythons = not is_array(array) and not isinstance(array, np.generic)
    if dtype is None and pythons and np.asarray(array).dtype == np.float64:
        dtype = np.float32
    kind = None if dtype is None else dtype_named(dtype)
    return Tensor(xp.array(array, dtype=kind), requires_grad)


def from_numpy(array: Array) -> Tensor:
    """Return a tensor of the array itself, whose memory is shared.

    Args:
        array: An array of numpy or cupy.

    Example:
        ```python
        values = np.zeros(3, np.float32)
        tr.nn.from_numpy(values).copy_(np.ones(3))
        values.tolist()  # [1.0, 1.0, 1.0]
        ```
    """
    return Tensor(array)
