"""Who gets which node rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign(survivors: Mapping[str, int], newcomers: Sequence[str]) -> list[str]:
    """The nodes by their new ranks, which are dense; as few survivors move as possible.

    `survivors` have a rank already. The highest of them fill holes that newcomers do not, and the
    hole at rank 0 in any case: who has been there before has what newcomers ask rank 0 for.
    """
    size = len(survivors) + len(newcomers)
    seats: dict[int, str] = {}
    movers = []
    for node, rank in sorted(survivors.items(), key=lambda item: item[1]):
        if 0 <= rank < size and rank not in seats:
            seats[rank] = node
        else:
            movers.append(node)
    if seats and 0 not in seats and not movers:
        movers = [seats.pop(max(seats))]
    waiting = iter([*reversed(movers), *newcomers])
    return [seats[rank] if rank in seats else next(waiting) for rank in range(size)]
