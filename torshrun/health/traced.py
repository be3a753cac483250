"""Reads what a Collector made of recordings: longer records than recordings hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torsh_runtime.monitoring.layout import ENTRIES, Operation, operations_of
from torsh_runtime.monitoring.notes import Group, Note, groups_of, notes_of
from torshrun.health.packed import Piece, Unpacked, split, unpack
from torshrun.text import printable


class Traced(NamedTuple):
    """The trace of one node. Times are in seconds of its CLOCK_MONOTONIC."""

    about: Mapping[str, object]
    at: float
    """The time when it ended."""
    began: float
    wall: float | None
    """Seconds to be added to get its wall clock; None is unknown."""
    full_at: float | None
    """The time when there was no room for more; None if there always was."""
    workers: Mapping[int, Worker]
    """The workers by local rank."""
    nbytes: int
    """The size of the whole trace, in bytes."""


class Worker:
    """Reads what one worker has noted. All methods may be called again."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._late: dict[int, Operation] = {}
        self._begun = 0
        self._groups: list[Group] = []
        self._is_read = False

    def operations(self) -> Iterator[Operation]:
        """Yield the operations in the order in which they began; they are decoded on demand."""
        self._read_late()
        for piece, words in self._recordings():
            for held in operations_of(words, words) if not piece.is_late else ():
                each = held if held.left is not None else self._late.get(held.number, held)
                if each.left is not None or self._may_run(each.number):
                    yield each

    def _may_run(self, number: int) -> bool:
        """Return whether an operation that had not ended when it was copied may still run."""
        return number > self._begun - ENTRIES or number in self._late

    def notes(self) -> Iterator[Note]:
        """Yield the notes in their order; they are decoded on demand."""
        for _, words in self._recordings():
            yield from notes_of(words, words)

    def groups(self) -> list[Group]:
        """Return all groups that it has reported."""
        self._read_late()
        return self._groups

    def _read_late(self) -> None:
        if self._is_read:
            return
        self._is_read = True
        for piece, words in self._recordings():
            self._begun = max(self._begun, words[0])
            self._groups = groups_of(words)
            if piece.is_late:
                self._late |= {each.number: each for each in operations_of(words, words)}

    def _recordings(self) -> Iterator[tuple[Piece, memoryview]]:
        unpacked = Unpacked()
        for packed in self._pieces:
            if piece := unpack(packed):
                yield piece, unpacked.recording(piece)


def read_trace(trace: bytes) -> Traced | None:
    """Return the trace in these bytes; None if there is none."""
    found = split(trace)
    if found is None:
        return None
    about, pieces = found
    by_place: dict[int, list[bytes]] = {}
    for place, packed in pieces:
        by_place.setdefault(place, []).append(packed)
    at, began, wall, full_at = (
        _number(about.get(key)) for key in ("at", "began", "wall", "full_at")
    )
    if at is None or began is None:
        return None
    workers = {place: Worker(own) for place, own in sorted(by_place.items())}
    facts = {key: printable(each) if isinstance(each, str) else each for key, each in about.items()}
    return Traced(facts, at, began, wall, full_at, workers, len(trace))


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and abs(value) < float("inf")
    return float(value) if is_number and isinstance(value, int | float) else None
