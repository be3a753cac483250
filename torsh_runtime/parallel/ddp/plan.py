"""Assigns gradients to buckets, by pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 1 << 20
_SHARE = 16
"""Number of buckets that a model is cut into if communication runs beside the backward pass: the
time that the last bucket takes is not hidden, so a bucket has about a sixteenth of the model,
but no less than a MiB."""


Kind = tuple[str, str, int]
"""The dtype that it is averaged in, its device, and the number of the ranks that it is averaged
over."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Describes one parameter's gradient. Gradients of different `kind` do not share a bucket."""

    elements: int
    itemsize: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Span:
    """A bucket: the parameters in it, by number, one after the other from element `start` of the
    flat memory of its kind up to `end`."""

    kind: Kind
    start: int
    end: int
    members: tuple[int, ...]


def limit_of(bucket_size_mb: float, total_bytes: int, overlaps: bool) -> int:
    """Return the largest size of a bucket in bytes."""
    most = int(bucket_size_mb * 2**20)
    return min(most, max(_LEAST, total_bytes // _SHARE)) if overlaps else most


def spans(gradients: Sequence[Gradient], order: Sequence[int], limit: int) -> list[Span]:
    """Return buckets of at most `limit` bytes, or of one gradient, in the order in which they
    are complete if gradients become ready in `order`."""
    ends: Counter[Kind] = Counter()  # of all gradients of a kind, in elements
    begun: dict[Kind, list[int]] = {}
    found: list[Span] = []

    def close(kind: Kind) -> None:
        members = tuple(begun.pop(kind))
        end = ends[kind]
        found.append(Span(kind, end - sum(gradients[i].elements for i in members), end, members))

    held: Counter[Kind] = Counter()  # bytes of the bucket that is being filled
    for number in order:
        one = gradients[number]
        nbytes = one.elements * one.itemsize
        if one.kind in begun and held[one.kind] + nbytes > limit:
            close(one.kind)
        if one.kind not in begun:
            begun[one.kind], held[one.kind] = [], 0
        begun[one.kind].append(number)
        held[one.kind] += nbytes
        ends[one.kind] += one.elements
    for kind in list(begun):
        close(kind)
    return found
