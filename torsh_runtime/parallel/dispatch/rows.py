"""Operations on rows, one for each token, that lie in another order or by expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torsh_runtime.framework.operations import Operation
from torsh_runtime.parallel.dispatch.routing import Indices
from torsh_runtime.parallel.operations import JointOperation, indices
from torsh_runtime.parallel.regions.arrays import Array, empty


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Operation):
    """Row i is the sum of those that index[i] names; -1 is none. The adjoint goes by `inverse`,
    which names for each row those that it has become part of.
    """

    index: Indices
    inverse: Indices

    def __call__(self, array: Array) -> Array:
        first, *others = self.index.T
        total = _taken(array, first)
        for column in others:
            total = total + _taken(array, column)
        return total

    @property
    def adjoint(self) -> Rows:
        return Rows(self.inverse, self.index)


def _taken(array: Array, column: Indices) -> Array:
    nowhere = column < 0
    if len(array) == 0:
        found = empty(array, (len(column), *array.shape[1:]))
        found[...] = 0
        return found
    found = array[_index(array, column)]
    if nowhere.any():
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
class GroupedLinear(JointOperation):
    """input (rows, in) @ weight[e]ᵀ (experts, out, in), where `counts[e]` rows in succession are of
    expert e: to (rows, out).
    """

    counts: Sequence[int]

    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        rows, weight = arrays
        result = empty(rows, (len(rows), weight.shape[1]))
        for expert, part in self._parts():
            result[part] = rows[part] @ weight[expert].T
        return result, arrays

    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        rows, weight = saved
        for_rows, for_weight = empty(rows, rows.shape), empty(weight, weight.shape)
        for expert, part in self._parts():
            for_rows[part] = gradient[part] @ weight[expert]
            for_weight[expert] = gradient[part].T @ rows[part]
        return for_rows, for_weight

    def _parts(self) -> Iterator[tuple[int, slice]]:
        start = 0
        for expert, count in enumerate(self.counts):
            yield expert, slice(start, start + count)
            start += count


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
