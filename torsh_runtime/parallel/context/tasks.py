"""Computes which queries look at which keys of a block.

Of two spans of tokens, in causal attention within a document, one looks at the whole other or at
nothing of it, unless they are equal. So no mask is needed: a block is a few rectangles and
triangles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from torsh_runtime.parallel.context.chunks import Span, chunks

Documents = tuple[tuple[int, ...], ...]
"""Cumulative lengths of documents, for each row of a batch or once for all rows."""


class Band(NamedTuple):
    """Selects the pairs of a rectangle's queries and keys by their distance."""

    offset: int
    """The first query's place in the sequence less the first key's."""
    least: int
    most: int


class Task(NamedTuple):
    """Attention of some of a rank's queries to some of a block's keys."""

    rows: slice
    """Rows of the batch."""
    queries: slice
    keys: slice
    is_causal: bool
    """True if query i looks at keys 0 to i only; there are as many keys as queries then."""
    band: Band | None = None
    """None: queries look at all keys, or as `is_causal` says."""


@lru_cache(maxsize=1024)
def tasks(
    length: int, ranks: int, rank: int, source: int, documents: Documents, is_causal: bool
) -> tuple[Task, ...]:
    """Return the tasks of a rank's queries among the source's keys."""
    queries, keys = chunks(length, ranks, rank), chunks(length, ranks, source)
    if not documents:
        return tuple(_between(slice(None), queries, keys, is_causal))
    found: list[Task] = []
    for row, cuts in enumerate(documents):
        rows = slice(None) if len(documents) == 1 else slice(row, row + 1)
        own, other = by_document(queries, cuts), by_document(keys, cuts)
        for document in own.keys() & other.keys():
            found += _between(rows, own[document], other[document], is_causal)
    return tuple(found)


def by_document(spans: Iterable[Span], cuts: Sequence[int]) -> dict[int, list[Span]]:
    """Return the spans, cut where documents begin, by the document's number."""
    found: dict[int, list[Span]] = {}
    for first, at, length in spans:
        for number, (start, end) in enumerate(pairwise(cuts)):
            start, end = max(start, first), min(end, first + length)
            if start < end:
                span = Span(start, at + start - first, end - start)
                found.setdefault(number, []).append(span)
    return found


def _between(
    rows: slice, queries: Sequence[Span], keys: Sequence[Span], is_causal: bool
) -> Iterator[Task]:
    """Yield tasks for spans of one document that are contiguous in memory."""
    if not is_causal or queries == keys:
        yield Task(rows, _run(queries), _run(keys), is_causal)
        return
    for seen, some in groupby(queries, lambda span: sum(key.first < span.first for key in keys)):
        if seen:
            yield Task(rows, _run([*some]), _run(keys[:seen]), False)


def _run(spans: Sequence[Span]) -> slice:
    return slice(spans[0].at, spans[-1].at + spans[-1].length)
