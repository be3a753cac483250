"""Which queries look at which keys of a block: arithmetic.

Of two spans of tokens, in causal attention within a document, one looks at all of the other or at
nothing of it, unless they are the same. So no mask is needed: a block is a few rectangles and
triangles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from torsh_runtime.parallel.context.chunks import Span, chunks

Documents = tuple[tuple[int, ...], ...]
"""Of each row of a batch the cumulative lengths of its documents, or once for all rows."""


class Band(NamedTuple):
    """Which keys of a rectangle its queries look at: those at some distances."""

    offset: int
    """The first query's place in the sequence less the first key's."""
    least: int
    most: int


class Task(NamedTuple):
    """Attention of some of a rank's queries to some of a block's keys."""

    rows: slice
    """Of the batch."""
    queries: slice
    keys: slice
    is_causal: bool
    """Whether query i looks at keys 0 to i only; there are as many then."""
    band: Band | None = None
    """None: queries look at all keys, or as `is_causal` says."""


@lru_cache(maxsize=1024)
def tasks(
    length: int, ranks: int, rank: int, source: int, documents: Documents, is_causal: bool
) -> tuple[Task, ...]:
    """What a rank's queries have to look at among the source's keys."""
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
    """The spans, cut where documents begin; by the document's number."""
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
    """Of spans of one document, which lie one behind the other in memory."""
    if not is_causal or queries == keys:
        yield Task(rows, _run(queries), _run(keys), is_causal)
        return
    for seen, some in groupby(queries, lambda span: sum(key.first < span.first for key in keys)):
        if seen:
            yield Task(rows, _run([*some]), _run(keys[:seen]), False)


def _run(spans: Sequence[Span]) -> slice:
    return slice(spans[0].at, spans[-1].at + spans[-1].length)
