"""Linear maps of what the ranks of a group have to what they get, each with its adjoint.

The adjoint is what a backward pass does; the adjoint's own is the map again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.operations import Operation
from torsh_runtime.parallel.regions.arrays import (
    Array,
    contiguous,
    copied,
    empty,
    part,
    resized,
    split,
    stacked,
    unstacked,
)

Sizes = tuple[int, ...]
"""Along a dimension, of each rank."""


@dataclass(frozen=True, slots=True)
class Map(Operation):
    """A linear one, for a group."""

    is_traceable: ClassVar[bool] = True
    group: ProcessGroup

    def traced(self, tensor: Any) -> Any:
        """Return the result in a graph of torch.compile."""
        from torsh_runtime.parallel.regions import traced  # which loads torch

        return traced.applied(tensor, self)

    @property
    def numbers(self) -> Sequence[int]:
        """Return all that it is made of besides the group."""
        return ()

    @classmethod
    def of(cls, group: ProcessGroup, numbers: Sequence[int]) -> Self:
        """Return a map with these numbers."""
        return cls(group)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of this rank's result for an array of a shape."""
        return tuple(shape)


@dataclass(frozen=True, slots=True)
class Copy(Map):
    """Gives all ranks the tensor that all of them have."""

    def __call__(self, array: Array) -> Array:
        return array

    @property
    def adjoint(self) -> Operation:
        return Sum(self.group)

    @property
    def is_identity(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Sum(Map):
    """Gives all ranks the sum."""

    overwrites: bool = False

    def __call__(self, array: Array) -> Array:
        total = array if self.overwrites else copied(array)
        self.group.all_reduce(total)
        return total

    @property
    def adjoint(self) -> Operation:
        return Copy(self.group)

    @property
    def is_in_place(self) -> bool:
        return self.overwrites


@dataclass(frozen=True, slots=True)
class _Along(Map):
    """Parts along a dimension, of given sizes."""

    dim: int
    sizes: Sizes

    @property
    def numbers(self) -> Sequence[int]:
        return self.dim, *self.sizes

    @classmethod
    def of(cls, group: ProcessGroup, numbers: Sequence[int]) -> Self:
        dim, *sizes = numbers
        return cls(group, dim, tuple(sizes))

    def _gathered(self, array: Array) -> Array:
        self._check(array, self.sizes[self.group.rank], "this rank's part")
        if self._are_equal:
            everything = empty(array, (len(self.sizes), *array.shape))
            self.group.all_gather_into_tensor(everything, contiguous(array))
            return unstacked(everything, self.dim)
        whole = empty(array, resized(array.shape, self.dim, sum(self.sizes)))
        self.group.all_gather(split(whole, self.dim, self.sizes), contiguous(array))
        return whole

    @property
    def _are_equal(self) -> bool:
        """Return whether all parts are equally large, so that one array can have them."""
        return min(self.sizes) == max(self.sizes)

    def _check(self, array: Array, size: int, what: str) -> None:
        if array.shape[self.dim] != size:
            raise ConfigError(
                f"dimension {self.dim} of an array of shape {tuple(array.shape)} has to be of size "
                f"{size}, {what} of sizes {self.sizes}, on rank {self.group.rank} of the group"
            )


@dataclass(frozen=True, slots=True)
class Gather(_Along):
    """Gives all ranks every rank's part, which they use alike."""

    def __call__(self, array: Array) -> Array:
        return self._gathered(array)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return resized(shape, self.dim, sum(self.sizes))

    @property
    def adjoint(self) -> Operation:
        return Scatter(self.group, self.dim, self.sizes)


@dataclass(frozen=True, slots=True)
class Scatter(_Along):
    """Gives each rank its part of a tensor that all of them have."""

    def __call__(self, array: Array) -> Array:
        self._check(array, sum(self.sizes), "the whole")
        start = sum(self.sizes[: self.group.rank])
        return part(array, self.dim, start, start + self.sizes[self.group.rank])

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return resized(shape, self.dim, self.sizes[self.group.rank])

    @property
    def adjoint(self) -> Operation:
        return Gather(self.group, self.dim, self.sizes)


@dataclass(frozen=True, slots=True)
class AllGather(_Along):
    """Gives all ranks every rank's part, which each uses in its own way."""

    def __call__(self, array: Array) -> Array:
        return self._gathered(array)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return resized(shape, self.dim, sum(self.sizes))

    @property
    def adjoint(self) -> Operation:
        return ReduceScatter(self.group, self.dim, self.sizes)


@dataclass(frozen=True, slots=True)
class ReduceScatter(_Along):
    """Gives each rank its part of the sum."""

    def __call__(self, array: Array) -> Array:
        self._check(array, sum(self.sizes), "the whole")
        own = empty(array, self.shape(array.shape))
        if self._are_equal:
            self.group.reduce_scatter_tensor(own, stacked(array, self.dim, len(self.sizes)))
        else:
            parts = [contiguous(each) for each in split(array, self.dim, self.sizes)]
            self.group.reduce_scatter(own, parts)
        return own

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return resized(shape, self.dim, self.sizes[self.group.rank])

    @property
    def adjoint(self) -> Operation:
        return AllGather(self.group, self.dim, self.sizes)


@dataclass(frozen=True, slots=True)
class AllToAll(Map):
    """Gives each rank a part of each rank's tensor."""

    split_dim: int
    inputs: Sizes
    """Sizes of the parts for each rank, along split_dim."""
    cat_dim: int
    outputs: Sizes
    """Sizes of the parts from each rank, along cat_dim."""

    @property
    def numbers(self) -> Sequence[int]:
        return self.split_dim, *self.inputs, self.cat_dim, *self.outputs

    @classmethod
    def of(cls, group: ProcessGroup, numbers: Sequence[int]) -> Self:
        half = len(numbers) // 2
        (split_dim, *inputs), (cat_dim, *outputs) = numbers[:half], numbers[half:]
        return cls(group, split_dim, tuple(inputs), cat_dim, tuple(outputs))

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        own = resized(shape, self.split_dim, self.inputs[self.group.rank])
        return resized(own, self.cat_dim, sum(self.outputs))

    def __call__(self, array: Array) -> Array:
        if array.shape[self.split_dim] != sum(self.inputs):
            raise ConfigError(
                f"parts of sizes {self.inputs} are not all of dimension {self.split_dim} of an "
                f"array of shape {tuple(array.shape)}, on rank {self.group.rank} of the group"
            )
        parts = [contiguous(each) for each in split(array, self.split_dim, self.inputs)]
        shape = parts[self.group.rank].shape
        whole = empty(array, resized(shape, self.cat_dim, sum(self.outputs)))
        self.group.all_to_all(split(whole, self.cat_dim, self.outputs), parts)
        return whole

    @property
    def adjoint(self) -> Operation:
        return AllToAll(self.group, self.cat_dim, self.outputs, self.split_dim, self.inputs)


def as_sizes(group: ProcessGroup, sizes: Sequence[int]) -> Sizes:
    """Return the sizes, one for each rank, as a tuple. Raises ConfigError if they are not."""
    found = tuple(sizes)
    if len(found) != group.world_size or min(found) < 0:
        raise ConfigError(
            f"sizes {found} are for {len(found)} ranks: give one, from 0 on, for each of the "
            f"group's {group.world_size}"
        )
    return found
