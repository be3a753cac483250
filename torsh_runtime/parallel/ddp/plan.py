"""Which gradients lie in which bucket: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 1 << 20
_SHARE = 16
"""Where communication runs beside the backward pass, what the last bucket takes is not hidden; so
a bucket is about a sixteenth of the model, but no less than a MiB."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """One parameter's. `kind` tells apart what does not fit into one bucket."""

    elements: int
    itemsize: int
    kind: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Span:
    """A bucket: the parameters in it, by number, one after the other from element `start` of the
    flat memory of its kind up to `end`."""

    kind: tuple[str, str]
    start: int
    end: int
    members: tuple[int, ...]


def limit_of(bucket_size_mb: float, total_bytes: int, overlaps: bool) -> int:
    """The most bytes of a bucket."""
    most = int(bucket_size_mb * 2**20)
    return min(most, max(_LEAST, total_bytes // _SHARE)) if overlaps else most


def spans(gradients: Sequence[Gradient], order: Sequence[int], limit: int) -> list[Span]:
    """Buckets of at most `limit` bytes, or of one gradient, in the order in which they are
    complete if gradients become ready in `order`.
    """
    ends: dict[tuple[str, str], int] = {}
    open_: dict[tuple[str, str], list[int]] = {}
    found: list[Span] = []

    def close(kind: tuple[str, str]) -> None:
        members = tuple(open_.pop(kind))
        start = ends.get(kind, 0)
        ends[kind] = start + sum(gradients[i].elements for i in members)
        found.append(Span(kind, start, ends[kind], members))

    for number in order:
        one = gradients[number]
        held = open_.get(one.kind, ())
        if held and sum(map(_bytes, (gradients[i] for i in held))) + _bytes(one) > limit:
            close(one.kind)
        open_.setdefault(one.kind, []).append(number)
    for kind in list(open_):
        close(kind)
    return found


def _bytes(gradient: Gradient) -> int:
    return gradient.elements * gradient.itemsize
