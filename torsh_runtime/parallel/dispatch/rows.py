"""Operations on rows, one for each token, that lie in another order or by expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.framework.operations import Operation
from torsh_runtime.parallel.dispatch.routing import Indices
from torsh_runtime.parallel.operations import JointOperation, indices, is_tensor
from torsh_runtime.parallel.regions.arrays import Array, empty


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Operation):
    """Row i is the sum of those that index[i] names; -1 is none. The adjoint goes by `inverse`,
    which names for each row those that it has become part of.
    """

    index: Any
    inverse: Any
    has_gaps: bool = True
    """False: no index is -1, which would take long to find out on a device."""

    def __call__(self, array: Array) -> Array:
        first, *others = self.index.T
        total = self._taken(array, first)
        for column in others:
            total = total + self._taken(array, column)
        return total

    @property
    def adjoint(self) -> Rows:
        return Rows(self.inverse, self.index, self.has_gaps)

    def _taken(self, array: Array, column: Any) -> Array:
        if len(array) == 0:
            found = empty(array, (len(column), *array.shape[1:]))
            found[...] = 0
            return found
        if is_tensor(column):
            return _taken_there(array, column, self.has_gaps)
        return _taken(array, column, self.has_gaps)


def _taken_there(array: Any, column: Any, has_gaps: bool) -> Array:
    """Take rows of a tensor by a tensor on its device, for which the processor does not wait."""
    found: Array = array.index_select(0, column.clamp(min=0) if has_gaps else column)
    if not has_gaps:
        return found
    nowhere: Any = (column < 0).reshape(-1, *[1] * (array.ndim - 1))
    given: Any = found
    filled: Array = given.masked_fill_(nowhere, 0)
    return filled


def _taken(array: Array, column: Indices, has_gaps: bool) -> Array:
    nowhere = column < 0
    found = array[_index(array, column)]
    if has_gaps and nowhere.any():
        found[_index(array, nowhere.nonzero()[0])] = 0
    return found


def _index(array: Array, column: Indices) -> Array:
    """Return the column as the array's framework takes it."""
    return indices(column, array)


@dataclass(frozen=True, slots=True)
class Scaled(Operation):
    """Returns its input, and multiplies the gradient by a factor."""

    factor: float
    is_gradient: bool = False

    def __call__(self, array: Array) -> Array:
        return array * self.factor if self.is_gradient else array

    @property
    def adjoint(self) -> Scaled:
        return Scaled(self.factor, not self.is_gradient)


@dataclass(frozen=True, slots=True)
class Beside(JointOperation):
    """The first one as it is, beside others that it may not be made of: these get gradients of
    zeros, so that backward passes are the same on all ranks, whoever has something to compute.
    """

    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        first, *others = arrays
        return first.reshape(first.shape), others

    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        zeros = [empty(each, each.shape) for each in saved]
        for each in zeros:
            each[...] = 0
        return gradient, *zeros
