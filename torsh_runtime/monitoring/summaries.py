"""The agent's summaries of its workers' steps, which it sends to the leader now and then. A summary
has at most 1 KiB, whatever is in the workers' records.

    header  version (8 bits), how many ranks (8), number of the summary (32), node (32), its CPU,
            memory, network and GPU utilisation (16 each, of 65,534; 65,535 is unknown), the rate of
            its connections to other nodes (float32, less than 0 is unknown), flags (8)
    rank    rank (32), last step (32, signed), steps (16), pattern (16), then float32 of FIGURES,
            then SECTIONS times a name (12 bytes of UTF-8) and seconds (float32)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

MOST_BYTES = 1024
SECTIONS = 3
"""Sections of each rank: those in which it is longest."""
_VERSION = 1
_HEADER, _RANK, _SECTION = (
    struct.Struct("<BBII4HfB"),
    struct.Struct("<IiHH8f"),
    struct.Struct("<12sf"),
)
_RANK_BYTES = _RANK.size + SECTIONS * _SECTION.size
MOST_RANKS = (MOST_BYTES - _HEADER.size) // _RANK_BYTES
"""Ranks of a node that fit into a summary."""
_WHOLE, _UNKNOWN = 65534, 65535
_GPU_THROTTLED = 1
_LONGEST = 1e12  # seconds of a step, faults in one, bytes a second


class RankSummary(NamedTuple):
    """The steps of one rank since the summary before; seconds are those of a step in the mean."""

    rank: int
    step: int
    """The last step."""
    steps: int
    """Number of steps."""
    pattern: int
    """A number that is equal for ranks that call the same operations in a step."""
    seconds: float
    own: float
    """Own work. A single step in which it was very long counts little."""
    waiting: float
    moving: float
    queued: float = 0.0
    """Seconds in which it was to run and others had the processor."""
    throttled: float = 0.0
    """Seconds in which its control group had used up its quota of the processor."""
    faults: float = 0.0
    """Pages that were read from a disk."""
    read: float = 0.0
    """Seconds in which it waited for a disk, as far as the kernel counts that."""
    sections: Sequence[tuple[str, float]] = ()
    """Own work by section, the longest first."""


FIGURES = RankSummary._fields[4:12]
"""Fields of a RankSummary that may be averaged."""


def figures_of(rank: RankSummary) -> list[float]:
    """Return the rank's figures, in the order of FIGURES."""
    return [getattr(rank, name) for name in FIGURES]


def with_figures(
    rank: RankSummary, figures: Iterable[float], sections: Sequence[tuple[str, float]]
) -> RankSummary:
    """Return the summary with these figures, in the order of FIGURES, and sections."""
    named: dict[str, Any] = dict(zip(FIGURES, figures, strict=True))
    return rank._replace(**named, sections=sections)


class NodeSummary(NamedTuple):
    """The ranks of a node, and how much its resources are used: 0 to 1, None is unknown."""

    number: int
    """Grows from summary to summary."""
    node: int
    """Rank of the node."""
    ranks: Sequence[RankSummary]
    cpu: float | None = None
    memory: float | None = None
    network: float | None = None
    gpu: float | None = None
    rate: float | None = None
    """Bytes a second that its slowest connection delivers to another node."""
    gpu_is_throttled: bool = False


def encode(summary: NodeSummary) -> bytes:
    """Return the summary as at most MOST_BYTES. Of more than MOST_RANKS ranks some are left out,
    but not the slowest."""
    ranks = _some(summary.ranks)
    shares = map(_share, (summary.cpu, summary.memory, summary.network, summary.gpu))
    rate = -1.0 if summary.rate is None else _bounded(summary.rate)
    flags = _GPU_THROTTLED * summary.gpu_is_throttled
    number, node = summary.number % (1 << 32), summary.node % (1 << 32)
    header = _HEADER.pack(_VERSION, len(ranks), number, node, *shares, rate, flags)
    return header + b"".join(map(_encoded, ranks))


def decode(content: bytes) -> NodeSummary | None:
    """Return the summary that encode() made bytes of. None for anything else, or impossible
    figures."""
    if not _HEADER.size <= len(content) <= MOST_BYTES:
        return None
    version, count, number, node, *shares, rate, flags = _HEADER.unpack_from(content)
    if version != _VERSION or len(content) != _HEADER.size + count * _RANK_BYTES:
        return None
    starts = range(_HEADER.size, len(content), _RANK_BYTES)
    ranks = [_decoded(content, start) for start in starts]
    if any(rank is None for rank in ranks):
        return None
    cpu, memory, network, gpu = (None if share > _WHOLE else share / _WHOLE for share in shares)
    known = rate if 0 <= rate <= 2 * _LONGEST else None
    held = [rank for rank in ranks if rank is not None]
    is_throttled = bool(flags & _GPU_THROTTLED)
    return NodeSummary(number, node, held, cpu, memory, network, gpu, known, is_throttled)


def _some(ranks: Sequence[RankSummary]) -> list[RankSummary]:
    """Return ranks evenly from the slowest to the fastest, both of them included."""
    if len(ranks) <= MOST_RANKS:
        return list(ranks)
    by_work = sorted(ranks, key=lambda each: each.own, reverse=True)
    last = len(by_work) - 1
    return [by_work[place * last // (MOST_RANKS - 1)] for place in range(MOST_RANKS)]


def _share(share: float | None) -> int:
    if share is None or not math.isfinite(share):
        return _UNKNOWN
    return round(min(max(share, 0.0), 1.0) * _WHOLE)


def _encoded(each: RankSummary) -> bytes:
    amounts = map(_bounded, figures_of(each))
    step = min(max(each.step, -(1 << 31)), (1 << 31) - 1)
    steps = min(each.steps, 65535)
    packed = _RANK.pack(each.rank % (1 << 32), step, steps, each.pattern % 65536, *amounts)
    sections = [*each.sections[:SECTIONS], *[("", 0.0)] * SECTIONS][:SECTIONS]
    return packed + b"".join(
        _SECTION.pack(name.encode("utf-8", "replace")[:12], _bounded(seconds))
        for name, seconds in sections
    )


def _bounded(amount: float) -> float:
    return min(max(amount, 0.0), _LONGEST) if math.isfinite(amount) else 0.0


def _decoded(content: bytes, start: int) -> RankSummary | None:
    rank, step, steps, pattern, *amounts = _RANK.unpack_from(content, start)
    places = range(start + _RANK.size, start + _RANK_BYTES, _SECTION.size)
    found = [_SECTION.unpack_from(content, place) for place in places]
    figures = [*amounts, *(seconds for _, seconds in found)]
    if not all(0 <= figure <= 2 * _LONGEST for figure in figures):
        return None
    sections = [(_text(name), seconds) for name, seconds in found if name.strip(b"\0")]
    return with_figures(RankSummary(rank, step, steps, pattern, 0, 0, 0, 0), amounts, sections)


def _text(name: bytes) -> str:
    """Make a name fit for a terminal, since its writer is not known."""
    told = name.rstrip(b"\0").decode("utf-8", "ignore")
    return "".join(letter if letter.isprintable() else "?" for letter in told)
