"""Summarizes the comparisons of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torsh_runtime.parallel.verification.comparing import Held, Pair, why
from torsh_runtime.parallel.verification.difference import Difference
from torsh_runtime.parallel.verification.place import Place


def judged(pairs: Sequence[Pair], place: Place, tolerance: float) -> list[Difference]:
    """Return what differs, the same on all ranks, which call this together.

    Each kind and name is listed once, in the order of the computation. The first difference has an
    explanation.
    """
    bad = [pair for pair in pairs if pair.differs(tolerance)]
    told = place.of_all([(pair.order, pair.kind, pair.name, pair.text) for pair in bad])
    first: dict[Any, tuple[Any, int, str]] = {}
    for rank, rows in enumerate(told):
        for order, kind, name, text in rows:
            known = first.get((kind, name))
            if known is None or (order, rank) < known[:2]:
                first[kind, name] = order, rank, text
    ordered = sorted(first.items(), key=lambda item: item[1][:2])
    mine = {pair.order: pair for pair in pairs}
    return [
        Difference(
            kind=kind,
            name=name,
            rank=rank,
            coordinate=place.told(rank),
            text=text,
            why="" if number else _why(mine.get(order), rank, place, tolerance),
        )
        for number, ((kind, name), (order, rank, text)) in enumerate(ordered)
    ]


def _why(pair: Pair | None, rank: int, place: Place, tolerance: float) -> str:
    everyone = place.of_all(None if pair is None else (Held(pair.own, pair.part), pair.scale))
    held = {number: each[0] for number, each in enumerate(everyone) if each is not None}
    return why(rank, held, place.along(rank), tolerance * everyone[rank][1])
