"""Divides sequences between ranks, and tells which queries look at which keys.

A sequence is cut into two chunks for each rank, whose sizes differ by one at most. Rank r of n has
chunk r and chunk 2n - 1 - r, an early and a late one, so that in causal attention all have as much
to do ("zigzag": Brandon et al., Striped Attention, 2023, divide for the same reason; Llama Team,
The Llama 3 Herd of Models, 2024, divide in this way).

Of two spans of tokens, in causal attention within a document, one looks at the whole other or at
nothing of it, unless they are equal. So tasks() needs no mask: a block is a few rectangles and
triangles. Where distance or padding counts, a query looks at keys whose distance (the query's place
less the key's) is between two bounds. In two spans these pairs form a band, which banded_tasks()
cuts into tiles: there are keys that all queries of a tile look at, for which no mask is needed, and
on either side of these a rectangle that is masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import even_cuts
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.operations import joined
from torsh_runtime.parallel.regions.arrays import part


class Span(NamedTuple):
    """Tokens one behind the other, in the sequence and in a rank's memory."""

    first: int
    """The first one's place in the sequence."""
    at: int
    """Place of the first one in the rank's memory."""
    length: int


@lru_cache(maxsize=256)
def chunks(length: int, ranks: int, rank: int) -> tuple[Span, Span]:
    """Return the early and the late chunk of a rank. ConfigError if there are too few tokens."""
    if 1 < ranks > length // 2:
        raise ConfigError(
            f"a sequence of {length} tokens gives {ranks} ranks no early and late chunk each: it "
            f"takes {2 * ranks} tokens at least"
        )
    cuts = even_cuts(length, 2 * ranks)
    early, late = (cuts[i + 1] - cuts[i] for i in (rank, 2 * ranks - 1 - rank))
    return Span(cuts[rank], 0, early), Span(cuts[2 * ranks - 1 - rank], early, late)


def lengths(length: int, ranks: int) -> tuple[int, ...]:
    """Return the number of each rank's tokens."""
    return tuple(sum(span.length for span in chunks(length, ranks, rank)) for rank in range(ranks))


@lru_cache(maxsize=256)
def seen(length: int, ranks: int, is_causal: bool) -> tuple[tuple[int, ...], ...]:
    """Return for each rank how many of its tokens, counted from its first, each rank looks at."""
    sizes = lengths(length, ranks)
    return tuple(
        tuple(
            chunks(length, ranks, source)[0].length
            if is_causal and rank > source
            else sizes[source]
            for rank in range(ranks)
        )
        for source in range(ranks)
    )


def of_rank(tensor: Any, dim: int, length: int, ranks: int, rank: int) -> Any:
    """Return the rank's tokens of a whole sequence."""
    return _picked(tensor, dim, chunks(length, ranks, rank))


def by_rank(tensor: Any, dim: int, length: int, ranks: int) -> Any:
    """Reorder a whole sequence by rank: the tokens of rank 0, then those of rank 1 and so on."""
    return _picked(tensor, dim, _all_chunks(length, ranks))


def in_order(tensor: Any, dim: int, length: int, ranks: int) -> Any:
    """Reverse by_rank(): put tokens in the sequence's order."""
    spans = _all_chunks(length, ranks)
    starts = accumulate((span.length for span in spans), initial=0)
    there = [Span(start, 0, span.length) for start, span in zip(starts, spans, strict=False)]
    places = sorted(range(len(spans)), key=lambda place: spans[place].first)
    return _picked(tensor, dim, [there[place] for place in places])


def _all_chunks(length: int, ranks: int) -> list[Span]:
    return [span for rank in range(ranks) for span in chunks(length, ranks, rank)]


def _picked(tensor: Any, dim: int, spans: Any) -> Any:
    return joined([part(tensor, dim, first, first + length) for first, _, length in spans], dim)


def context_shard(tensor: Any, axis: Any, dim: int = 1) -> Any:
    """Return this rank's tokens of whole sequences along `dim`: an early and a late chunk.

    See context_attention() for the chunks.

    Args:
        tensor: A tensor of torch or nn, through which gradients flow, or an array.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        dim: The dimension of the sequence.

    Raises:
        ConfigError: For fewer tokens than two for each rank.

    Example:
        ```python
        own = tr.context_shard(input_ids, mesh["cp"])  # (rows, own tokens)
        ```
    """
    group = group_of(axis)
    dim %= len(tensor.shape)
    return of_rank(tensor, dim, tensor.shape[dim], group.world_size, group.rank)


def context_positions(
    length: int, axis: Any, documents: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Return the places of this rank's tokens, from 0, in their sequence.

    Args:
        length: The number of tokens of the whole sequence.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        documents: Cumulative lengths of documents; places are then counted within each document.

    Returns:
        int64 of shape (own tokens,).

    Raises:
        ConfigError: For fewer tokens than two for each rank, and for documents that are not those
            of such a sequence.

    Example:
        ```python
        own = tr.context_positions(8, mesh["cp"])  # [0, 1, 6, 7] on rank 0 of 2
        ```
    """
    group = group_of(axis)
    spans = chunks(length, group.world_size, group.rank)
    places = np.concatenate([np.arange(first, first + size) for first, _, size in spans])
    if documents is None:
        return places
    starts = np.asarray(documents, np.int64)
    if starts.ndim != 1 or starts[0] or starts[-1] != length or (np.diff(starts) < 0).any():
        raise ConfigError(
            f"documents {documents} are not cumulative lengths from 0 to {length}, of one sequence"
        )
    return places - starts[np.searchsorted(starts, places, "right") - 1]


def context_gather(tensor: Any, axis: Any, length: int | None = None, dim: int = 1) -> Any:
    """Gather the parts of all ranks and return whole sequences: the reverse of context_shard().

    Each rank uses the whole in its own way: the backward pass adds up the gradients of all, as fits
    losses that are averaged over the ranks.

    Args:
        tensor: This rank's part, a tensor of torch or nn.
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        length: The length of the whole sequence; None if all ranks have as many tokens as this one.
        dim: The dimension of the sequence.

    Raises:
        ConfigError: For fewer tokens than two for each rank.
        CommError: If the exchange among the ranks fails.

    Example:
        ```python
        own = tr.context_shard(hidden, mesh["cp"])
        whole = tr.context_gather(own, mesh["cp"])  # equal to hidden
        ```
    """
    group = group_of(axis)
    dim %= len(tensor.shape)
    whole = length or tensor.shape[dim] * group.world_size
    sizes = lengths(whole, group.world_size)
    return in_order(regions.all_gather(tensor, group, dim, sizes), dim, whole, group.world_size)


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
