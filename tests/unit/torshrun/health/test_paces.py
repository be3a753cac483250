"""How steps go, from what a worker has noted in its recording since the look before."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from torsh_runtime.monitoring import layout, notes
from torsh_runtime.monitoring.summaries import RankSummary
from torshrun.health.kernel_facts import Facts
from torshrun.health.paces import WARM_UP, Pace
from torshrun.health.recent import Recent
from torshrun.health.recordings import Recordings

TICKS = 1000  # of the processor's clock, in a second
SECOND = 10**9


class Program:
    """Writes what a worker would, at times of its own."""

    def __init__(self, path: str, place: int) -> None:
        file = Path(layout.file_beside(path))
        self._file = file.open("r+b", buffering=0)
        self._begin = layout.HEADER_BYTES + place * layout.STRIDE
        self.now = 100.0
        self.operations = self.notes = self.names = 0
        self._put(1, 2, 1, 1 * SECOND // TICKS, 1_000_000 * TICKS, 1_000_000 * SECOND)

    def close(self) -> None:
        self._file.close()

    def _put(self, word: int, *values: int) -> None:
        self._file.seek(self._begin + 8 * word)
        self._file.write(struct.pack(f"={len(values)}Q", *values))

    def operation(self, seconds: float, waiting: float) -> None:
        start = layout.FIRST_ENTRY + self.operations % layout.ENTRIES * layout.ENTRY_WORDS
        entered, came, left = self.now, self.now + waiting, self.now + seconds
        times = [round(moment * TICKS) for moment in (entered, came, left)]
        mark = (self.operations + 1) << 2 | layout.LEFT
        self._put(start, mark, 0xFFFFFFFF << 32 | 11 << 8, 8, 2 << 32, self.operations, *times)
        self.operations += 1
        self._put(0, self.operations)
        self.now = left

    def note(self, kind: str, name: int = 0, value: float = 0.0) -> None:
        start = layout.FIRST_NOTE + self.notes % layout.NOTES * layout.NOTE_WORDS
        (bits,) = struct.unpack("=Q", struct.pack("=d", value))
        what = notes.KINDS.index(kind) | name << 8
        mark = (self.notes + 1) << 2 | layout.LEFT
        self._put(start, mark, what, round(self.now * SECOND), bits)
        self.notes += 1
        self._put(layout.NOTES_BEGUN, self.notes)

    def name(self, *names: str) -> None:
        for place, name in enumerate(names):
            self._file.seek(self._begin + 8 * (layout.FIRST_NAME + place * layout.NAME_WORDS))
            self._file.write(name.encode().ljust(64, b"\0"))
        self._put(layout.NAMES_TAKEN, len(names))

    def steps(
        self, count: int, *, data: float = 0.2, own: float = 1.0, waiting: float = 0.5
    ) -> None:
        for _ in range(count):
            self.note("step", value=self.operations)
            self.note("begin", 1)
            self.now += data
            self.note("end", 1)
            self.now += own - data
            self.operation(waiting + 0.1, waiting)


class Kernel:
    """Tells of a process that waits for a processor half a second each second."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def facts(self) -> Facts:
        return Facts(queued=self._program.now / 2)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Program, Pace]]:
    path = str(tmp_path / "status")
    recordings = Recordings.make(path, 2)
    program = Program(path, 1)
    program.name("", "data", "forward")
    assert recordings.descriptor is not None
    yield program, Pace(9, Recent(recordings.descriptor, 1), Kernel(program))  # type: ignore[arg-type]
    program.close()
    recordings.close()


def looked(pace: Pace) -> RankSummary:
    found = pace.look()
    assert found is not None
    return found


def test_steps_are_told_of_once_and_not_before_they_have_ended(
    made: tuple[Program, Pace],
) -> None:
    program, pace = made
    assert pace.look() is None
    program.steps(WARM_UP + 1)
    assert pace.look() is None
    program.steps(6)
    found = looked(pace)
    assert (found.rank, found.steps, found.step) == (9, 6, WARM_UP + 5)
    assert found[4:8] == pytest.approx((1.6, 1.0, 0.5, 0.1), abs=0.01)
    assert dict(found.sections) == pytest.approx({"data": 0.2}, abs=0.01)
    assert pace.look() is None
    program.steps(1, data=0.7, own=1.5)
    assert looked(pace).own == pytest.approx(1.0, abs=0.01)
    program.steps(1)
    late = looked(pace)
    assert (late.steps, late.own) == (1, pytest.approx(1.5, abs=0.01))
    assert dict(late.sections) == pytest.approx({"data": 0.7}, abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_however_often_it_is_looked_at_all_steps_count(
    made: tuple[Program, Pace], seed: int
) -> None:
    program, pace, chance = *made, random.Random(seed)
    program.steps(WARM_UP + 1)
    pace.look()
    counted = taken = 0
    for _ in range(40):
        count = chance.randrange(60)
        program.steps(count, own=1.0 + count / 100)
        taken += count
        found = pace.look()
        if found:
            counted += found.steps
            assert found.own >= 1.0
    assert counted == taken


def test_what_was_overwritten_before_it_was_read_is_left_out(made: tuple[Program, Pace]) -> None:
    program, pace = made
    program.steps(WARM_UP + 1)
    pace.look()
    program.steps(3 * layout.ENTRIES)
    found = looked(pace)
    assert 0 < found.steps <= layout.NOTES // 3
    assert found.own == pytest.approx(1.0, abs=0.01)


def test_one_hiccup_counts_little(made: tuple[Program, Pace]) -> None:
    program, pace = made
    program.steps(WARM_UP + 1)
    pace.look()
    program.steps(5)
    program.steps(1, own=1000.0)
    program.steps(5)
    assert looked(pace).own < 1.25


@pytest.mark.parametrize("seed", range(10))
def test_nonsense_in_the_file_hurts_nobody(tmp_path: Path, seed: int) -> None:
    path = str(tmp_path / "status")
    recordings = Recordings.make(path, 1)
    chance = random.Random(seed)
    file = Path(layout.file_beside(path))
    assert recordings.descriptor is not None
    program = Program(path, 0)
    pace = Pace(0, Recent(recordings.descriptor, 0), Kernel(program))  # type: ignore[arg-type]
    for _ in range(5):
        content = bytearray(file.read_bytes())
        for _ in range(2000):
            content[chance.randrange(len(content))] = chance.randrange(256)
        size = len(content) if chance.random() < 0.8 else chance.randrange(len(content))
        file.write_bytes(content[:size])
        recordings.new_names()
        pace.look()
    program.close()
    recordings.close()
