"""The arrays of a call, contiguous and checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays import staged
from torsh_runtime.backends.operation import Op

Array = NDArray[Any]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class Typed(Protocol):
    """An array of any library, or parts of one, as far as their dtype is checked here."""

    @property
    def dtype(self) -> _Named: ...


class Sized(Typed, Protocol):
    """An array of any library, as far as it is checked here."""

    @property
    def size(self) -> int: ...


Part = TypeVar("Part", bound=Sized)


@contextmanager
def flat(array: object, *, writable: bool) -> Iterator[Array]:
    """Yield the array's elements, contiguous and in one dimension; see `staged`."""
    with staged(array, writable=writable) as contiguous:
        yield contiguous.reshape(-1)


@dataclass(frozen=True, slots=True)
class Parts(Generic[Part]):
    """Holds an argument's data for each rank: parts of one array, or separate arrays."""

    arrays: list[Part]
    """The one, or one for each rank, in order of rank; none where this rank has no part."""
    sizes: list[int]
    """Elements of each rank's part."""
    listed: bool
    """True if sizes may differ from rank to rank."""

    @property
    def dtype(self) -> _Named:
        return self.arrays[0].dtype

    @property
    def counts(self) -> list[int] | None:
        """Return the sizes if they may differ, else None."""
        return self.sizes if self.listed else None


FlatParts = Parts[Array]


def parts_of(name: str, given: Any, count: int, take: Callable[[object], Part]) -> Parts[Part]:
    """Return the parts of one array, or of a list or tuple of `count` arrays.

    Each array is passed through `take`. Raises ValueError if there are not `count` parts.
    """
    if is_list(given):
        arrays = [take(array) for array in given]
        check_list(name, arrays, count)
        return Parts(arrays, [array.size for array in arrays], True)
    return equal_parts(name, take(given), count)


def equal_parts(name: str, array: Part, count: int) -> Parts[Part]:
    """Cut an array into `count` equal parts. Raises ValueError unless its size is a multiple."""
    if array.size % count != 0:
        raise ValueError(
            f"{name} has {array.size} elements; its size must be a multiple of world_size, {count}"
        )
    return Parts([array], [array.size // count] * count, False)


def is_list(given: object) -> TypeGuard[Sequence[Any]]:
    """Return whether the argument has an array for each rank rather than one array."""
    return isinstance(given, list | tuple)


def ends_of(
    op: Op, rank: int, ranks: int, take: Callable[[object, bool], Part]
) -> tuple[Parts[Part], Parts[Part]]:
    """Return the targets and the sources of an operation with outputs or inputs, by rank.

    `take(array, writable)` prepares an array. Raises ValueError if targets and sources do not fit
    together.
    """
    if {"outputs", "inputs"} <= {*op.takes}:
        check_both(op.output, op.input)
        sources = parts_of("inputs", op.input, ranks, lambda array: take(array, False))
        targets = parts_of("outputs", op.output, ranks, lambda array: take(array, True))
        check_part("outputs", targets, rank, sources, sources.sizes[rank])
        return targets, sources
    gathers, is_rooted = "outputs" in op.takes, "root" in op.takes
    if is_rooted:
        check_rank("root", op.root, ranks)
    name, given = ("outputs", op.output) if gathers else ("inputs", op.input)
    own = take(op.input if gathers else op.output, not gathers)
    if is_rooted and rank != op.root:
        check_none(name, given)
        parts: Parts[Part] = Parts([], [0] * ranks, True)
    else:
        parts = parts_of(name, given, ranks, lambda array: take(array, gathers))
        check_part(name, parts, rank, own, own.size)
    peers = [op.root] if is_rooted else range(ranks)
    other = Parts([own], [own.size if peer in peers else 0 for peer in range(ranks)], is_rooted)
    return (parts, other) if gathers else (other, parts)


def joined(parts: FlatParts, dtype: np.dtype[Any]) -> Array:
    """Return the parts in sequence: the one array itself, or a copy."""
    room = room_for(parts, dtype)
    # Without `out` the dtype would be of this machine's order.
    return np.concatenate(parts.arrays, out=room) if len(parts.arrays) > 1 else room


def room_for(parts: FlatParts, dtype: np.dtype[Any]) -> Array:
    """Return an array that holds the parts in sequence, before distribute()."""
    return parts.arrays[0] if len(parts.arrays) == 1 else np.empty(sum(parts.sizes), dtype)


def distribute(room: Array, parts: FlatParts) -> None:
    """Copy what was put into the room to where it belongs, if that is elsewhere."""
    begin = 0
    for array in parts.arrays if len(parts.arrays) > 1 else ():
        array[...] = room[begin : begin + array.size]
        begin += array.size


def check_list(name: str, arrays: Sequence[Typed], count: int) -> None:
    """Raise ValueError unless there are `count` arrays, all of the same dtype."""
    if len(arrays) != count:
        raise ValueError(f"{name} has {len(arrays)} arrays; it needs one per rank, {count}")
    for array in arrays:
        check_dtype(name, array, arrays[0])


def check_part(name: str, parts: Parts[Part], rank: int, other: Typed, size: int) -> None:
    """Raise ValueError unless a rank's part has `size` elements and the other array's dtype."""
    check_dtype(name, parts, other)
    if parts.sizes[rank] != size:
        raise ValueError(
            f"the part of {name} for rank {rank} has {parts.sizes[rank]} elements; its size must "
            f"be {size}, that of the other array"
        )


def check_both(outputs: object, inputs: object) -> None:
    """Raise ValueError unless both are lists, or neither is."""
    if is_list(outputs) != is_list(inputs):
        raise ValueError("outputs and inputs must be an array each, or a list each")


def check_none(name: str, given: object) -> None:
    """Raise ValueError if a rank that is not the root passes what only the root has."""
    if given is not None:
        raise ValueError(f"{name} is for the root only; pass None on the other ranks")


def check_dtype(name: str, array: Typed, other: Typed) -> None:
    """Raise ValueError unless both have the same dtype."""
    own, wanted = _dtype_name(array), _dtype_name(other)
    if own != wanted:
        raise ValueError(
            f"{name} is {own}, another array of the call {wanted}; they must have the same dtype"
        )


def _dtype_name(array: Typed) -> str:
    """Return the dtype's name; numpy's `name` of its own types omits byte order and fields."""
    return str(array.dtype) if isinstance(array.dtype, np.dtype) else array.dtype.name


def check_size(name: str, array: Sized, size: int, why: str) -> None:
    """Raise ValueError unless the array has `size` elements."""
    if array.size != size:
        raise ValueError(f"{name} has {array.size} elements; its size must be {size}, {why}")


def check_rank(name: str, rank: int, world_size: int) -> None:
    """Raise ValueError unless the group has such a rank."""
    if rank not in range(world_size):
        raise ValueError(f"{name}={rank!r} is not a rank of the group (0 to {world_size - 1})")


def check_peer(name: str, peer: int, own: int, world_size: int) -> None:
    """Raise ValueError unless the group has such a rank and it is not `own`."""
    check_rank(name, peer, world_size)
    if peer == own:
        raise ValueError(f"{name}={peer} is this rank itself; messages go to other ranks")


def check_tag(tag: int | None, largest: int) -> int:
    """Return the tag. Raises ValueError unless messages can have it."""
    if tag is None:
        raise ValueError("only the native backend can receive messages of any tag: name one")
    if tag not in range(largest + 1):
        raise ValueError(f"tag={tag!r} is not from 0 to {largest}")
    return tag
