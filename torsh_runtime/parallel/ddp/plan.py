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
_EARLY = 4
"""A bucket is closed for a gradient that would be too much if it has that part of the limit."""

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


@dataclass(frozen=True, slots=True)
class Limits:
    """Says how many bytes buckets have: on CPUs at most, unless one gradient is more; on GPUs, as
    torch's, at least, of which the first bucket of a backward pass may have its own number."""

    on_cpu: int
    on_gpu: int
    first_on_gpu: int


def limits_of(bucket_size_mb: float, is_given: bool, total_bytes: int, overlaps: bool) -> Limits:
    """Return the limits of a model's buckets. is_given: whether a program has chosen the size."""
    most = int(bucket_size_mb * 2**20)
    on_cpu = min(most, max(_LEAST, total_bytes // _SHARE)) if overlaps else most
    return Limits(on_cpu, most, most if is_given else min(_LEAST, most))


def spans(gradients: Sequence[Gradient], order: Sequence[int], limits: Limits) -> list[Span]:
    """Return buckets in the order in which they are complete if gradients become ready in
    `order`."""
    ends: Counter[Kind] = Counter()  # of all gradients of a kind, in elements
    held: Counter[Kind] = Counter()  # bytes of the bucket that is being filled
    begun: dict[Kind, list[int]] = {}
    found: list[Span] = []

    def close(kind: Kind) -> None:
        members, held[kind] = tuple(begun.pop(kind)), 0
        end = ends[kind]
        found.append(Span(kind, end - sum(gradients[i].elements for i in members), end, members))

    for number in order:
        one = gradients[number]
        kind, nbytes, is_on_cpu = one.kind, one.elements * one.itemsize, one.kind[1] == "cpu"
        is_enough = held[kind] * _EARLY >= limits.on_cpu
        if is_on_cpu and kind in begun and is_enough and held[kind] + nbytes > limits.on_cpu:
            close(kind)
        begun.setdefault(kind, []).append(number)
        held[kind] += nbytes
        ends[kind] += one.elements
        is_first = held[kind] == ends[kind] * one.itemsize
        if not is_on_cpu and held[kind] >= (limits.first_on_gpu if is_first else limits.on_gpu):
            close(kind)
    for kind in list(begun):
        close(kind)
    return found
