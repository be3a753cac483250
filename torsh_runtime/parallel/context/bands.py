"""Which queries look at which keys of a block where distance or padding counts: arithmetic.

Keys that a query looks at lie at distances (the query's place less the key's) between two bounds.
Of two spans that is a band, which is cut into tiles: queries of a tile look at some keys all alike,
for which no mask is needed, and at some before and behind these by a masked rectangle each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise, product
from typing import NamedTuple

from torsh_runtime.parallel.context.chunks import Span, chunks
from torsh_runtime.parallel.context.tasks import Band, Documents, Task, by_document

Runs = tuple[tuple[tuple[int, int], ...], ...]
"""Of each row of a batch where its tokens begin and end; what lies between is padding. () if there
is none."""
_TILES = 64, 512
"""The smallest and the largest number of queries in a tile."""


class Sight(NamedTuple):
    """Who looks at whom."""

    documents: Documents = ()
    is_causal: bool = True
    window: int | None = None
    """Tokens look at tokens that are less than so many places away, themselves included."""
    runs: Runs = ()

    @property
    def is_banded(self) -> bool:
        """Whether distance or padding counts."""
        return self.window is not None or bool(self.runs)

    def bounds(self, length: int) -> tuple[int, int]:
        """The smallest and the largest distance."""
        most = (self.window or length) - 1
        return (0 if self.is_causal else -most), most


@lru_cache(maxsize=1024)
def banded_tasks(length: int, ranks: int, rank: int, source: int, sight: Sight) -> tuple[Task, ...]:
    """What a rank's queries have to look at among the source's keys. Each query of a task looks at
    some key, and each task's keys lie in one chunk."""
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
    """Rows of a batch that are alike, their documents and runs of tokens."""
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
    """What of the spans is in the runs."""
    found = []
    for (first, at, length), (start, stop) in product(spans, runs):
        start, stop = max(start, first), min(stop, first + length)
        if start < stop:
            found.append(Span(start, at + start - first, stop - start))
    return found


def _tiles(rows: slice, queries: Span, keys: Span, least: int, most: int) -> Iterator[Task]:
    """A band of two spans, tile by tile."""
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
    """What of it lies between two places."""
    start, stop = max(first - span.first, 0), min(end - span.first, span.length)
    return _part(span, start, max(start, stop))


def _part(span: Span, start: int, stop: int) -> Span:
    return Span(span.first + start, span.at + start, stop - start)


def _end(span: Span) -> int:
    return span.first + span.length


@lru_cache(maxsize=1024)
def needed(length: int, ranks: int, rank: int, source: int, sight: Sight) -> tuple[slice, ...]:
    """Which of the source's tokens the rank has to get: of each chunk some, or nothing."""
    found, every = [], banded_tasks(length, ranks, rank, source, sight)
    for _, at, size in chunks(length, ranks, source):
        keys = [task.keys for task in every if at <= task.keys.start < at + size]
        if keys:
            found.append(slice(min(key.start for key in keys), max(key.stop for key in keys)))
    return tuple(found)


def of_what_came(tasks: Sequence[Task], came: Sequence[slice]) -> tuple[Task, ...]:
    """Tasks about a block as they are about what of it came."""
    found, at = [], 0
    for some in came:
        shift = at - some.start
        for task in tasks:
            if some.start <= task.keys.start and task.keys.stop <= some.stop:
                keys = slice(task.keys.start + shift, task.keys.stop + shift)
                found.append(task._replace(keys=keys))
        at += some.stop - some.start
    return tuple(found)
