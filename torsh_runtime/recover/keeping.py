"""Keeps what an operation was given, so that it can be carried out again with the same values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from xxhash import xxh3_64

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.operation import Op
from torsh_runtime.errors import ConfigError

_IN_PLACE = ("all_reduce", "reduce", "broadcast")
"""Operations whose array is both input and output."""


class Kept:
    """Holds an operation's inputs, descriptions of its outputs, and a checksum of its results."""

    def __init__(self, op: Op, timeout: float, number: int) -> None:
        """Copy what the operation is given. Raises TypeError for arrays of an unknown kind."""
        self.number = number
        self._timeout, self._checksum = timeout, 0
        input_ = _map(_copied, op.input)
        output = input_ if op.kind in _IN_PLACE else _map(_described, op.output)
        self._op = op._replace(input=input_, output=output)
        self.num_bytes = sum(each.nbytes for each in _listed(input_))

    def complete(self, op: Op) -> None:
        """Note what the operation has resulted in."""
        self._checksum = _checksum(op.output)

    def restore(self, op: Op) -> None:
        """Give the operation that this was kept of its inputs again, which it may have changed."""
        for array, values in zip(_listed(op.input), _listed(self._op.input), strict=True):
            _assign(array, values)

    def repeat(self, backend: Backend) -> None:
        """Carry the operation out for a rank that repeats it, and drop what this rank gets.

        Raises ConfigError if the results are others than before.
        """
        given = _map(_copied, self._op.input)
        is_in_place = self._op.kind in _IN_PLACE
        op = self._op._replace(
            input=given, output=given if is_in_place else _map(_made, self._op.output)
        )
        op.begin(backend, self._timeout)
        if _checksum(op.output) != self._checksum:
            raise ConfigError(
                f"rank {backend.rank}: operation {self.number}, {op.kind}, had another result "
                f"when the copy of a lost worker repeated it, so the script's results depend on "
                f"more than its inputs, such as on the time: leave --recover out"
            )


class _Described:
    """Describes an array that is to be made."""

    nbytes = 0

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def _listed(arrays: Any) -> Sequence[Any]:
    if arrays is None:
        return ()
    return arrays if isinstance(arrays, list | tuple) else (arrays,)


def _map(change: Callable[[Any], Any], arrays: Any) -> Any:
    if arrays is None:
        return None
    if isinstance(arrays, list | tuple):
        return [change(each) for each in arrays]
    return change(arrays)


def _copied(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return array.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(array, np.ndarray):
        return array.copy()
    raise TypeError(f"arrays of {type(array).__name__} cannot be kept")


def _described(array: Any) -> _Described:
    if isinstance(array, torch.Tensor):
        shape, dtype = array.shape, array.dtype
        return _Described(lambda: torch.empty(shape, dtype=dtype))
    if isinstance(array, np.ndarray):
        form, kind = array.shape, array.dtype
        return _Described(lambda: np.empty(form, kind))
    raise TypeError(f"arrays of {type(array).__name__} cannot be kept")


def _made(described: _Described) -> Any:
    return described.make()


def _assign(array: Any, values: Any) -> None:
    if isinstance(array, torch.Tensor):
        array.detach().copy_(values)
    else:
        array[...] = values


def _checksum(arrays: Any) -> int:
    digest = xxh3_64()
    for array in _listed(arrays):
        digest.update(_bytes_of(array).data)
    return int(digest.intdigest())


def _bytes_of(array: Any) -> NDArray[np.uint8]:
    if isinstance(array, torch.Tensor):
        found: NDArray[np.uint8] = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return found
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
