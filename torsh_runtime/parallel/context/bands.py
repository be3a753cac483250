"""Computes which queries look at which keys of a block where distance or padding counts.

A query looks at keys whose distance (the query's place less the key's) is between two bounds. In
two spans these pairs form a band, which is cut into tiles: there are keys that all queries of a
tile look at, for which no mask is needed, and on either side of these a rectangle that is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise, product
from typing import NamedTuple

from torsh_runtime.parallel.context.chunks import Span, chunks
from torsh_runtime.parallel.context.tasks import Band, Documents, Task, by_document

Runs = tuple[tuple[tuple[int, int], ...], ...]
"""For each row of a batch, where runs of tokens begin and end; padding is between them. () if there
is none.
"""
_TILES = 64, 512
"""The smallest and the largest number of queries in a tile."""


class Sight(NamedTuple):
    """Tells which tokens look at which."""

    documents: Documents = ()
    is_causal: bool = True
    window: int | None = None
    """Tokens look at tokens that are less than this many places away, themselves included."""
    runs: Runs = ()

    @property
    def is_banded(self) -> bool:
        """Return whether distance or padding counts."""
        return self.window is not None or bool(self.runs)

    def bounds(self, length: int) -> tuple[int, int]:
        """Return the smallest and the largest distance in a sequence of `length` tokens."""
        most = (self.window or length) - 1
        return (0 if self.is_causal else -most), most


@lru_cache(maxsize=1024)
def banded_tasks(length: int, ranks: int, rank: int, source: int, sight: Sight) -> tuple[Task, ...]:
    """Return the tasks of a rank's queries among the source's keys.

    Each query of a task looks at some key, and each task's keys are in one chunk.
    """
    queries, keys = chunks(length, ranks, rank), chunks(length, ranks, source)
    found: list[Task] = []
    for rows, cuts, runs in _rows(length, sight):
        own, others = by_document(queries, cuts), by_document(_within(keys, runs), cuts)
        for document in own.keys() & others.keys():
            for pair in product(own[document], others[document]):
                found += _tiles(rows, *pair, *sight.bounds(length))
    return tuple(found)


def _rows(
    length: int, sight: Sight
) -> Iterator[tuple[slice, tuple[int, ...], tuple[tuple[int, int], ...]]]:
    """Yield groups of equal rows of a batch, with their documents and runs of tokens."""
    documents, runs = sight.documents or ((0, length),), sight.runs or (((0, length),),)
    number = max(len(documents), len(runs))
    documents *= number // len(documents)
    runs *= number // len(runs)
    start = 0
    for (cuts, some), alike in groupby(zip(documents, runs, strict=True)):
        stop = start + len([*alike])
        yield slice(start, stop) if number > 1 else slice(None), cuts, some
        start = stop


def _within(spans: Sequence[Span], runs: Sequence[Sequence[int]]) -> list[Span]:
    """Return the parts of the spans that are in the runs."""
    found = []
    for (first, at, length), (start, stop) in product(spans, runs):
        start, stop = max(start, first), min(stop, first + length)
        if start < stop:
            found.append(Span(start, at + start - first, stop - start))
    return found


def _tiles(rows: slice, queries: Span, keys: Span, least: int, most: int) -> Iterator[Task]:
    """Yield the tasks of two spans' band, tile by tile."""
    size = min(max((most + 1) // 2, _TILES[0]), _TILES[1])
    for first in range(0, queries.length, size):
        tile = _part(queries, first, min(first + size, queries.length))
        tile = _clipped(tile, keys.first + least, _end(keys) + most)
        if not tile.length:
            continue
        seen = _clipped(keys, tile.first - most, _end(tile) - least)
        near, far = _end(tile) - most, tile.first - least
        inner = [near, far] if near < far else []
        cuts = [min(max(cut, seen.first), _end(seen)) for cut in inner]
        for start, stop in pairwise([seen.first, *cuts, _end(seen)]):
            block = _clipped(seen, start, stop)
            own = _clipped(tile, start + least, stop + most)
            if block.length and own.length:
                yield _task(rows, own, block, least, most)


def _task(rows: slice, queries: Span, keys: Span, least: int, most: int) -> Task:
    own, at = (slice(span.at, span.at + span.length) for span in (queries, keys))
    offset = queries.first - keys.first
    is_all = offset - keys.length + 1 >= least and offset + queries.length - 1 <= most
    is_causal = offset == 0 == least and keys.length == queries.length <= most + 1
    if is_causal and queries.length > 1:
        return Task(rows, own, at, True)
    return Task(rows, own, at, False, None if is_all else Band(offset, least, most))


def _clipped(span: Span, first: int, end: int) -> Span:
    """Return the part of the span between two places of the sequence."""
    start, stop = max(first - span.first, 0), min(end - span.first, span.length)
    return _part(span, start, max(start, stop))


def _part(span: Span, start: int, stop: int) -> Span:
    return Span(span.first + start, span.at + start, stop - start)


def _end(span: Span) -> int:
    return span.first + span.length


@lru_cache(maxsize=1024)
def needed(length: int, ranks: int, rank: int, source: int, sight: Sight) -> tuple[slice, ...]:
    """Return which of the source's tokens the rank needs: one slice at most of each chunk."""
    found, every = [], banded_tasks(length, ranks, rank, source, sight)
    for _, at, size in chunks(length, ranks, source):
        keys = [task.keys for task in every if at <= task.keys.start < at + size]
        if keys:
            found.append(slice(min(key.start for key in keys), max(key.stop for key in keys)))
    return tuple(found)


def of_what_came(tasks: Sequence[Task], came: Sequence[slice]) -> tuple[Task, ...]:
    """Return the tasks about a block with their keys' places in what was received of it."""
    found, at = [], 0
    for some in came:
        shift = at - some.start
        for task in tasks:
            if some.start <= task.keys.start and task.keys.stop <= some.stop:
                keys = slice(task.keys.start + shift, task.keys.stop + shift)
                found.append(task._replace(keys=keys))
        at += some.stop - some.start
    return tuple(found)
