"""The arrays of a call, contiguous and checked against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays import staged

Array = NDArray[Any]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class Sized(Protocol):
    """An array of any library, as far as it is checked here."""

    @property
    def dtype(self) -> _Named: ...

    @property
    def size(self) -> int: ...


@contextmanager
def flat(array: object, *, writable: bool) -> Iterator[Array]:
    """The array's elements, contiguous and in one dimension; see `staged`."""
    with staged(array, writable=writable) as contiguous:
        yield contiguous.reshape(-1)


@contextmanager
def flat_list(
    name: str, arrays: Sequence[object] | None, count: int, *, writable: bool
) -> Iterator[list[Array]]:
    """The same for each of `count` arrays of one dtype."""
    given = [] if arrays is None else list(arrays)
    if len(given) != count:
        raise ValueError(f"{name} has {len(given)} arrays; it needs one per rank, {count}")
    with ExitStack() as stack:
        pieces = [stack.enter_context(flat(array, writable=writable)) for array in given]
        for piece in pieces:
            check_dtype(name, piece, pieces[0])
        yield pieces


def check_dtype(name: str, array: Sized, other: Sized) -> None:
    """ValueError unless both have the same dtype."""
    own, wanted = _dtype_name(array), _dtype_name(other)
    if own != wanted:
        raise ValueError(
            f"{name} is {own}, another array of the call {wanted}; they must have the same dtype"
        )


def _dtype_name(array: Sized) -> str:
    """numpy's names of its own types leave out the byte order and the fields."""
    return str(array.dtype) if isinstance(array.dtype, np.dtype) else array.dtype.name


def check_size(name: str, array: Sized, size: int, why: str) -> None:
    """ValueError unless the array has so many elements."""
    if array.size != size:
        raise ValueError(f"{name} has {array.size} elements; its size must be {size}, {why}")


def check_rank(name: str, rank: int, world_size: int) -> None:
    """ValueError unless there is such a rank."""
    if rank not in range(world_size):
        raise ValueError(f"{name}={rank!r} is not a rank of the group (0 to {world_size - 1})")


def check_peer(name: str, peer: int, own: int, world_size: int) -> None:
    """ValueError unless there is such a rank, and it is another one."""
    check_rank(name, peer, world_size)
    if peer == own:
        raise ValueError(f"{name}={peer} is this rank itself; messages go to other ranks")


def check_tag(tag: int | None, largest: int) -> int:
    """The tag. ValueError unless messages can have it."""
    if tag is None:
        raise ValueError("only the native backend can receive messages of any tag: name one")
    if tag not in range(largest + 1):
        raise ValueError(f"tag={tag!r} is not from 0 to {largest}")
    return tag


def check_parts(target: Sized, source: Sized, world_size: int) -> None:
    """ValueError unless both have the same dtype and the same size, in world_size equal parts."""
    check_dtype("output", target, source)
    check_size("output", target, source.size, "the input's")
    if source.size % world_size != 0:
        raise ValueError(
            f"the arrays have {source.size} elements; their size must be a multiple of "
            f"world_size, {world_size}"
        )


def check_own_part(name: str, parts: Sequence[Sized], own: Sized, rank: int) -> None:
    """ValueError unless the part of this rank itself has the dtype and size of `own`."""
    check_dtype(name, parts[0], own)
    check_size(f"{name}[{rank}]", parts[rank], own.size, "that of the other array")


def none_here(name: str, arrays: Sequence[object] | None) -> None:
    """ValueError if a rank that is not the root gives arrays that only the root has."""
    if arrays:
        raise ValueError(f"{name} is for the root only; pass None on the other ranks")


def joined(arrays: Sequence[Array]) -> tuple[Array, list[int]]:
    """Copies of the arrays, one after the other, and their sizes."""
    room, sizes = room_for(arrays)
    return np.concatenate(arrays, out=room), sizes  # whose dtype would be of this machine's order


def room_for(arrays: Sequence[Array]) -> tuple[Array, list[int]]:
    """Uninitialised room for the elements of all the arrays, and their sizes."""
    sizes = [array.size for array in arrays]
    return np.empty(sum(sizes), arrays[0].dtype), sizes


def distribute(room: Array, targets: Sequence[Array]) -> None:
    """Copy what lies one after the other in `room` to the targets."""
    begin = 0
    for target in targets:
        target[...] = room[begin : begin + target.size]
        begin += target.size
