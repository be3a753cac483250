"""Decides which rank writes which piece, from the pieces that the ranks report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import Piece


@dataclass(frozen=True, slots=True)
class Held:
    """Represents a piece of a tensor that a rank has."""

    name: str
    dtype: str
    piece: Piece
    is_of_first: bool = False
    """True if the first rank that has the piece must write it, since others' values may differ."""


def share_out(held: Sequence[Sequence[Held]], itemsizes: Mapping[str, int]) -> list[list[Held]]:
    """Return for each rank the pieces that it writes.

    Each piece is written once, by a rank that has it. The largest pieces are assigned first, so
    that all ranks write about as many bytes.
    """
    holders: dict[Held, list[int]] = {}
    for rank, own in enumerate(held):
        for each in own:
            holders.setdefault(each, []).append(rank)
    sizes = {each: each.piece.size * itemsizes[each.dtype] for each in holders}
    loads, shares = [0] * len(held), [list[Held]() for _ in held]
    writers = {each: own[:1] if each.is_of_first else own for each, own in holders.items()}
    by_choice = sorted(holders, key=lambda each: (len(writers[each]) > 1, -sizes[each]))
    for each in by_choice:
        rank = min(writers[each], key=loads.__getitem__)
        loads[rank] += sizes[each]
        shares[rank].append(each)
    return shares


def check_whole(held: Sequence[Sequence[Held]]) -> None:
    """Check that the ranks' pieces fit together and make up whole tensors.

    Raises CheckpointError if ranks differ in a tensor's dtype or shape, or if parts are missing.
    """
    first: dict[str, tuple[Held, int]] = {}
    pieces: dict[str, set[Piece]] = {}
    for rank, own in enumerate(held):
        for each in own:
            other, who = first.setdefault(each.name, (each, rank))
            if _whole(other) != _whole(each):
                raise CheckpointError(
                    f"{each.name!r} is {_whole(other)} on rank {who} and {_whole(each)} on rank "
                    f"{rank}: build the same on all ranks"
                )
            pieces.setdefault(each.name, set()).add(each.piece)
    for name, parts in pieces.items():
        size = math.prod(first[name][0].piece.global_shape)
        there = sum(part.size for part in parts)
        if there < size:
            raise CheckpointError(
                f"the ranks have only {there} of the {size} elements of {name!r} together: save on "
                f"all ranks of the group that it is sharded over"
            )


def _whole(held: Held) -> str:
    return f"{held.dtype} of shape {held.piece.global_shape}"
