"""Holds samples of runs, and the rows that may be compared: same ranks, same size, same state."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine import FAR, MIXED, NEAR, UNKNOWN, classify

OURS, REGISTERED, GLOO, MEMCPY = "ours", "registered", "gloo", "memcpy"
MPIS = ("mpich", "openmpi")
NO_COMMON = "no common state"


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """Describes a comparison: one operation on a number of ranks, `ranks` in all."""

    operation: str
    dtype: str = "float32"
    ranks: int = 2
    nodes: int = 1

    @property
    def place(self) -> str:
        """Return the number of ranks, or nodes x ranks of each."""
        return f"{self.nodes}x{self.ranks // self.nodes}" if self.nodes > 1 else str(self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Holds one size in one run of one library. The times are those of the slowest rank."""

    library: str
    case: Case
    """The comparison to which the run belongs (memcpy itself is one process)."""
    nbytes: int
    round: int
    median_us: float
    mean_us: float
    before_ns: float | None
    after_ns: float | None
    per_rank: tuple[Mapping[str, Any], ...] = ()

    def state(self, limit: float) -> str:
        return classify(self.before_ns, self.after_ns, limit)


@dataclass(frozen=True, slots=True)
class Cell:
    """Holds the medians over a library's runs in one state."""

    median_us: float
    mean_us: float
    runs: int


@dataclass(frozen=True, slots=True)
class Row:
    """Holds all libraries at one size in one state. Without a common state it has no ratios."""

    case: Case
    nbytes: int
    state: str
    cells: Mapping[str, Cell] = field(default_factory=dict)

    def ratio(self, library: str, base: str = OURS) -> float | None:
        """Return how many times as long the library takes as the base; None if not comparable."""
        one, other = self.cells.get(library), self.cells.get(base)
        if one is None or other is None or self.state == NO_COMMON:
            return None
        return one.median_us / other.median_us

    def best_of(self, libraries: Collection[str]) -> float | None:
        """Return the smallest ratio of these to ours, that of the best; None if there is none."""
        found = [ratio for name in libraries if (ratio := self.ratio(name)) is not None]
        return min(found, default=None)


def from_ranks(
    library: str, case: Case, number: int, records: Sequence[Mapping[str, Any]]
) -> list[Sample]:
    """Return one sample per size from every rank's record of the same run."""
    per_size = zip(*(record["figures"] for record in records), strict=True)
    return [
        Sample(
            library=library,
            case=case,
            nbytes=figures[0]["bytes"],
            round=number,
            median_us=max(figure["median_us"] for figure in figures),
            mean_us=max(figure["mean_us"] for figure in figures),
            before_ns=figures[0]["before_ns"],
            after_ns=figures[0]["after_ns"],
            per_rank=tuple(figures),
        )
        for figures in per_size
    ]


def rows(samples: Iterable[Sample], limit: float) -> list[Row]:
    """Return, for each case and size, a row for each state that two libraries have in common.

    If there is no such state, one row with NO_COMMON shows the measurements, without ratios.
    """
    by_place: dict[tuple[Case, int], list[Sample]] = {}
    for sample in samples:
        by_place.setdefault((sample.case, sample.nbytes), []).append(sample)
    return [row for place in sorted(by_place) for row in _rows_of(*place, by_place[place], limit)]


def _rows_of(case: Case, nbytes: int, here: list[Sample], limit: float) -> list[Row]:
    by_state = {
        state: _cells([sample for sample in here if sample.state(limit) == state])
        for state in (NEAR, FAR, UNKNOWN)
    }
    shared = [
        Row(case, nbytes, state, cells) for state, cells in by_state.items() if _comparable(cells)
    ]
    return shared or [Row(case, nbytes, NO_COMMON, _cells(here))]


def _cells(samples: list[Sample]) -> dict[str, Cell]:
    cells = {}
    for library in dict.fromkeys(sample.library for sample in samples):
        mine = [sample for sample in samples if sample.library == library]
        cells[library] = Cell(
            statistics.median(sample.median_us for sample in mine),
            statistics.median(sample.mean_us for sample in mine),
            len(mine),
        )
    return cells


def _comparable(cells: Mapping[str, Cell]) -> bool:
    return len(cells.keys() - {MEMCPY}) >= 2


def lacking(
    samples: Sequence[Sample], libraries: Collection[str], limit: float, enough: int
) -> list[int]:
    """Return the sizes without a state in which every library has enough runs."""
    sizes = sorted({sample.nbytes for sample in samples})
    return [
        nbytes
        for nbytes in sizes
        if not any(
            all(_count(samples, library, nbytes, state, limit) >= enough for library in libraries)
            for state in (NEAR, FAR, UNKNOWN)
        )
    ]


def _count(samples: Sequence[Sample], library: str, nbytes: int, state: str, limit: float) -> int:
    return sum(
        sample.library == library and sample.nbytes == nbytes and sample.state(limit) == state
        for sample in samples
    )


def discarded(samples: Iterable[Sample], limit: float) -> int:
    """Return the number of runs during which the state changed, which enter no ratio."""
    return sum(sample.state(limit) == MIXED for sample in samples)


def round_trips(samples: Iterable[Sample]) -> list[float]:
    """Return every round trip measured with the samples, in ns."""
    pairs = ((sample.before_ns, sample.after_ns) for sample in samples)
    return [value for pair in pairs for value in pair if value is not None]
