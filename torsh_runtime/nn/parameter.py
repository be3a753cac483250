"""Defines tensors that a module registers when they become its attributes."""

from __future__ import annotations

from typing import Any

from torsh_runtime.nn.graph import Variable
from torsh_runtime.nn.tensor import Tensor


def _array(data: Any) -> Any:
    return data.data if isinstance(data, Variable) else data


class Parameter(Tensor):
    """Represents a leaf that is trained. It shares the memory of `data`, a tensor or an array."""

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(_array(data), requires_grad)


class Buffer(Tensor):
    """Holds a module's state that is not trained; `persistent` puts it into state_dict()."""

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        super().__init__(_array(data))
        self.persistent = persistent
