"""Sequences in their own order, and in that of the ranks that have their chunks.

For tensors of torch and of torsh_runtime.nn, through which gradients flow, and for arrays.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torsh_runtime.parallel.context.chunks import Span, chunks
from torsh_runtime.parallel.operations import joined
from torsh_runtime.parallel.regions.arrays import part


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
