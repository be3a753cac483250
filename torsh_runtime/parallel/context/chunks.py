"""Computes which tokens of a sequence a rank has, without arrays of them.

A sequence is cut into two chunks for each rank, whose sizes differ by one at most. Rank r of n has
chunk r and chunk 2n - 1 - r, an early and a late one, so that in causal attention all have as much
to do ("zigzag": Brandon et al., Striped Attention, 2023, divide for the same reason; Llama Team,
The Llama 3 Herd of Models, 2024, divide in this way).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import even_cuts


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
