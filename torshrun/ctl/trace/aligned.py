"""Puts the records of several nodes on one clock where their offsets have not been measured.

No rank leaves a collective of all before the last has entered it. So each that two nodes have in
common bounds by how much their clocks differ, from both sides; all together bound it closely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torsh_runtime.monitoring.layout import Operation

_OF_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations in which each rank waits for all others."""


class Span(NamedTuple):
    """One collective, as one node's ranks have seen it."""

    entered: float
    """When the last of them entered it."""
    left: float
    """When the first of them knew that all had entered."""


Spans = Mapping[tuple[int, int], Span]
"""By group and sequence."""


class Offset(NamedTuple):
    """What is to be added to a node's clock."""

    seconds: float
    bound: float
    """By how much it may be wrong."""


def spans_of(ranks: Iterable[Iterable[Operation]]) -> dict[tuple[int, int], Span]:
    """Of one node's ranks. Of a group that was made again only the last life counts."""
    found: dict[tuple[int, int], Span] = {}
    for operations in ranks:
        for key, span in _of_rank(operations).items():
            known = found.get(key, span)
            found[key] = Span(max(known.entered, span.entered), min(known.left, span.left))
    return found


def _of_rank(operations: Iterable[Operation]) -> dict[tuple[int, int], Span]:
    lives: dict[int, dict[tuple[int, int], Span]] = {}
    last: dict[int, int] = {}
    for each in operations:
        if each.operation not in _OF_ALL or each.state != "done" or each.left is None:
            continue
        if each.sequence <= last.get(each.group, -1):
            lives[each.group] = {}
        last[each.group] = each.sequence
        left = each.left if each.came is None else each.came
        lives.setdefault(each.group, {})[each.group, each.sequence] = Span(each.entered, left)
    return {key: span for life in lives.values() for key, span in life.items()}


def offsets(nodes: Sequence[Spans], known: Sequence[Offset | None]) -> list[Offset | None]:
    """Of each node, to one clock: to that which some are `known` to, else to the first node's. None
    for one that shares no collective with those whose offset is found.
    """
    found = list(known)
    if found and not any(found):
        found[0] = Offset(0.0, 0.0)
    common: dict[tuple[int, int], Span] = {}
    for spans, offset in zip(nodes, found, strict=True):
        if offset is not None:
            _merge(common, spans, offset.seconds)
    is_more = True
    while is_more:
        is_more = False
        for place, spans in enumerate(nodes):
            if found[place] is None and (offset := _between(common, spans)):
                found[place] = offset
                is_more = True
                _merge(common, spans, offset.seconds)
    return found


def _between(common: Spans, spans: Spans) -> Offset | None:
    """Of the other's clock to the common one."""
    shared = common.keys() & spans.keys()
    if not shared:
        return None
    least = max(common[key].entered - spans[key].left for key in shared)
    most = min(common[key].left - spans[key].entered for key in shared)
    return Offset((least + most) / 2, abs(most - least) / 2)


def _merge(common: dict[tuple[int, int], Span], spans: Spans, shift: float) -> None:
    for key, (entered, left) in spans.items():
        known = common.get(key, Span(entered + shift, left + shift))
        common[key] = Span(max(known.entered, entered + shift), min(known.left, left + shift))
