"""A whole tensor out of the pieces that ranks have, on one of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from torsh_runtime.arrays.raw import empty, framework_of
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommMismatch, CommTimeout, ConfigError, PeerLost
from torsh_runtime.framework import Values
from torsh_runtime.layout import Piece
from torsh_runtime.numpy_or_cupy import array_module
from torsh_runtime.parallel.operations import functions_of, is_tensor
from torsh_runtime.parallel.regions.arrays import contiguous
from torsh_runtime.parallel.regions.arrays import empty as empty_like

_NUMBERS = 7
"""Number of numbers that ranks send when they meet: few other calls send as many."""


def meet(group: ProcessGroup, what: str, where: str = "") -> None:
    """Return when all ranks of the group are about to collect the same. Raises ConfigError if
    they call something else, or come too late, that says to call `what` on every rank; `where`
    must be the same too."""
    own = np.full(_NUMBERS, zlib.crc32(f"{what} {where}".encode()), np.int64)
    text = (
        f"{what} collects what all ranks have, and some called something else, or nothing: call it "
        f"on every rank, outside of `if rank == 0:`. Rank 0 alone gets whole tensors, and writes"
    )
    try:
        rows = group.all_gather_numbers(own)
    except (CommMismatch, CommTimeout) as error:
        found = ConfigError(f"{text} ({error})")
        found.blame, found.members = error.blame, error.members
        raise found from error
    except PeerLost as error:
        error.add_note(text)
        raise
    if (rows != rows[0]).any():
        raise ConfigError(f"{text} ({where or 'another model'})")


def collected(
    own: Any, pieces: Mapping[int, Piece], dtype: str, group: ProcessGroup | None, like: Any
) -> Any:
    """Return the whole tensor on rank 0 of the group, in the host's memory, and None elsewhere.
    Without a group this process has all pieces.

    own: this rank's values, where it gives some. pieces: of those who give some, by rank, together
    all of the tensor; the same on all ranks. dtype: by its name. like: what rank 0 has on the
    device that the group takes tensors on. Peak memory of rank 0 is the tensor and a piece of it.
    """
    if group is not None and group.rank != 0:
        if group.rank in pieces and pieces[group.rank].size:
            group.send(_bytes_of(own), 0)
        return None
    shape = next(iter(pieces.values())).global_shape
    whole = empty(framework_of(like), shape, dtype)
    for rank, piece in pieces.items():
        if not piece.size:
            continue
        place(
            whole,
            piece,
            own if group is None or not rank else _received(rank, piece, whole, group, like),
        )
    return whole


def place(whole: Any, piece: Piece, values: Any) -> None:
    """Write a piece's values to where they belong in the whole."""
    for outer, inner in _same_elements(whole, piece, values):
        _copy(outer, inner)


def take(values: Any, piece: Piece, whole: Any) -> None:
    """Write a piece's elements of the whole into its values, cast to their dtype."""
    for outer, inner in _same_elements(whole, piece, values):
        _copy(inner, outer)


def _same_elements(whole: Any, piece: Piece, values: Any) -> Iterator[tuple[Any, Any]]:
    """Yield views of the whole and of a piece's values that have the same elements."""
    if not piece.is_box:
        flat, own = whole.reshape(-1), values.reshape(-1)
        for number, at, length in piece.runs():
            yield flat[number : number + length], own[at : at + length]
        return
    values = values.reshape(piece.shape)
    spans = [_placed(piece.spans_of(dim)) for dim in range(len(piece.shape))]
    for box in product(*spans):
        there = tuple(slice(*outer) for outer, _ in box)
        here = tuple(slice(*inner) for _, inner in box)
        yield whole[there] if there else whole, values[here] if here else values


def _placed(spans: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the indices of each span in the whole, and in the piece."""
    found, at = [], 0
    for first, last in spans:
        found.append(((first, last), (at, at + last - first)))
        at += last - first
    return found


def _copy(target: Any, source: Any) -> None:
    if hasattr(target, "copy_"):
        target.copy_(source)
    else:
        host = source.get() if array_module(source) is not np else source
        target[...] = array_module(target).asarray(host)


def _bytes_of(values: Any) -> Values:
    own: Values = values.detach() if is_tensor(values) else values
    return contiguous(own).reshape(-1).view(functions_of(own).uint8)


def _received(rank: int, piece: Piece, whole: Values, group: ProcessGroup, like: Values) -> Values:
    """Receive a piece's values, of the whole's dtype."""
    memory = empty_like(like, (piece.size * whole.itemsize,), functions_of(like).uint8)
    group.recv(memory, rank)
    return memory.view(whole.dtype)
