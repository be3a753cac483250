"""Recordings are followed for longer than they hold what was noted, in few bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.written import WrittenWorker, written_file

from torsh_runtime.monitoring.layout import ENTRIES, FAILED, file_beside, operations_of, words_of
from torsh_runtime.monitoring.notes import Group
from torshrun.health.collecting import Collector, collect_for
from torshrun.health.packed import MAGIC, Piece, pack, unpack
from torshrun.health.traced import Traced, read_trace


class Scene:
    """Two workers, and who follows them."""

    def __init__(self, path: Path) -> None:
        self.workers = written_file(path, 2)
        self.path = file_beside(str(path))
        self.collector = Collector(self.path)

    def read(self) -> Traced:
        traced = read_trace(self.collector.finish({"ranks": {0: 4, 1: 5}}))
        assert traced is not None
        return traced

    def numbers(self, place: int = 0) -> list[int]:
        return [each.number for each in self.read().workers[place].operations()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "pages")
    yield made
    made.collector.close()
    made.workers.clear()  # gives the memory back


def test_more_is_known_than_a_recording_holds(scene: Scene) -> None:
    for turn in range(10):
        scene.workers[0].do(500)
        scene.workers[1].do(300)
        scene.workers[1].notebook.write("step", value=turn)
        scene.workers[1].notebook.write("scalar", f"loss {turn}", 0.5)
        scene.collector.collect()
    scene.workers[1].notebook.name_group(Group(0, 2, "default", "0-1"))
    held = {place: list(worker.operations()) for place, worker in scene.read().workers.items()}
    assert {place: [each.number for each in own] for place, own in held.items()} == {
        0: list(range(5000)),
        1: list(range(3000)),
    }
    words = words_of(scene.workers[0].memory)
    assert held[0][-ENTRIES:] == operations_of(words, words)
    worker = scene.read().workers[1]
    noted = [(each.kind, each.name, each.value) for each in worker.notes()]
    assert noted == [
        each for turn in range(10) for each in (("step", "", turn), ("scalar", f"loss {turn}", 0.5))
    ]
    assert worker.groups() == [Group(0, 2, "default", "0-1")]
    assert [scene.collector.steps[1], scene.collector.steps[0]] == [9, None]


def test_an_operation_takes_few_bytes(scene: Scene) -> None:
    for _ in range(20):
        scene.workers[0].do(500)
        scene.collector.collect()
    assert len(scene.collector.finish({})) / 10_000 < 20


def test_what_was_overwritten_is_missing(scene: Scene) -> None:
    scene.workers[0].do(300)
    scene.collector.collect()
    scene.workers[0].do(2000)
    assert scene.numbers() == [*range(300), *range(1276, 2300)]


@pytest.mark.parametrize("before", [10, 700])
def test_who_takes_long_keeps_nobody_waiting_and_gets_its_end(scene: Scene, before: int) -> None:
    worker = scene.workers[0]
    worker.do(before)
    scene.collector.collect()
    first = worker.begin("send")
    for _ in range(2):
        worker.do(400)
        scene.collector.collect()
    worker.end(first, mark=FAILED)
    worker.do(100)
    scene.collector.collect()
    worker.do(900)
    scene.collector.collect()
    still = worker.begin("recv")
    held = list(scene.read().workers[0].operations())
    assert [each.number for each in held] == list(range(worker.begun))
    assert [each.number for each in held if each.state != "done"] == [first, still]
    assert (held[first].state, held[still].state) == ("failed", "running")


def test_whose_end_was_overwritten_is_left_out(scene: Scene) -> None:
    worker = scene.workers[0]
    worker.begin("send")
    worker.do(700)
    scene.collector.collect()
    worker.do(700)
    scene.collector.collect()
    assert scene.numbers() == list(range(1, 1401))


@pytest.mark.parametrize("has_ended", [True, False])
@pytest.mark.parametrize("before", [0, 3000])
def test_who_takes_very_long_keeps_its_entry(scene: Scene, before: int, has_ended: bool) -> None:
    worker = scene.workers[0]
    worker.passes = True
    worker.do(5)
    first = worker.begin("send")
    worker.do(before)
    for _ in range(4):
        scene.collector.collect()
        worker.do(700)
    if has_ended:
        worker.end(first)
    worker.do(30)
    held = [each for each in scene.read().workers[0].operations() if each.number >= before]
    long = [each for each in scene.read().workers[0].operations() if each.number == first]
    assert [each.state for each in long] == ["done" if has_ended else "running"]
    skipped = {first + lap * ENTRIES for lap in range(1, 1 + worker.begun // ENTRIES)}
    wanted = [number for number in range(before, worker.begun) if number not in skipped]
    assert [each.number for each in held] == wanted


def test_another_program_of_the_same_worker(scene: Scene) -> None:
    scene.workers[0].do(600)
    scene.collector.collect()
    scene.workers[0].clear()
    scene.workers[0].do(20)
    scene.workers[0].notebook.write("begin", "again")
    scene.collector.collect()
    assert scene.numbers() == [*range(600), *range(20)]
    assert [each.name for each in scene.read().workers[0].notes()] == ["again"]


def test_steps_are_looked_for_and_nothing_is_kept(scene: Scene) -> None:
    for step in range(5):
        scene.workers[0].do(500)
        scene.workers[0].notebook.write("step", value=step)
        assert scene.collector.watch() <= 0.5
    assert scene.collector.steps[0] == 4
    scene.collector.collect()
    traced = scene.read().workers[0]
    assert [each.number for each in traced.operations()] == list(range(2500 - ENTRIES, 2500))
    assert [each.value for each in traced.notes()] == [0, 1, 2, 3, 4]


def test_no_more_is_kept_than_there_is_room_for(tmp_path: Path) -> None:
    (worker,) = written_file(tmp_path / "pages", 1)
    collector = Collector(file_beside(str(tmp_path / "pages")), most_bytes=2000)
    for _ in range(20):
        worker.do(512)
        collector.collect()
    trace = collector.finish({})
    collector.close()
    assert 1000 < len(trace) < 2500
    traced = read_trace(trace)
    assert traced is not None
    assert traced.began <= (traced.full_at or 0) <= time.monotonic()
    assert len(list(traced.workers[0].operations())) % ENTRIES == 0


def test_it_rests_longer_than_it_works_and_comes_sooner_where_there_is_much(scene: Scene) -> None:
    assert scene.collector.collect() == pytest.approx(0.05)
    time.sleep(0.01)
    scene.workers[0].do(1000)
    assert scene.collector.collect() < 0.05


def test_the_file_may_be_cut_and_is_told_to_be_removed(scene: Scene) -> None:
    scene.workers[0].do(300)
    assert not scene.collector.is_replaced
    Path(scene.path).unlink()
    assert scene.collector.is_replaced
    scene.collector.collect()
    assert len(scene.numbers()) == 300


def test_for_a_while_or_as_long_as_it_is_wanted(scene: Scene) -> None:
    answers = iter([True, True, False])
    scene.workers[0].do(40)
    with ThreadPoolExecutor(1) as thread:  # which gives way to others from then on
        about = {"ranks": {0: 7}}
        wanted = thread.submit(collect_for, scene.path, 600, about, lambda: next(answers))
        short = thread.submit(collect_for, scene.path, 0, about, lambda: True)
    for trace in (wanted, short):
        traced = read_trace(trace.result())
        assert traced is not None
        assert len(list(traced.workers[0].operations())) == 40
        assert traced.about["ranks"] == {"0": 7}


@pytest.mark.parametrize("content", [b"", b"nonsense", bytes(10_000)])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(OSError, match="it holds no recordings"):
        Collector(str(tmp_path / "file"))


def test_nonsense_in_a_recording_hurts_nobody(scene: Scene) -> None:
    chance = random.Random(4)
    for _ in range(5):
        scene.workers[0].memory[:] = chance.randbytes(len(scene.workers[0].memory))
        _scramble(scene.workers[1], chance)
        scene.collector.collect()
    for worker in scene.read().workers.values():
        list(worker.operations())
        list(worker.notes())
        worker.groups()


def _scramble(worker: WrittenWorker, chance: random.Random) -> None:
    worker.do(400)
    worker.notebook.write("step", value=1)
    for _ in range(200):
        worker.words[chance.randrange(8, 12_000)] = chance.getrandbits(64)


def test_pieces_come_back_as_they_were_and_nonsense_is_refused() -> None:
    chance = random.Random(6)
    for count in (0, 1, 5, ENTRIES):
        rows = chance.randbytes(64 * count), chance.randbytes(32 * count)
        piece = Piece(chance.randbytes(64), 7, rows[0], 9, rows[1], 3, b"n" * 128, b"g" * 256)
        packed = pack(piece)
        assert unpack(packed) == piece
        assert unpack(packed[:-9]) in (None, piece)
    assert unpack(b"nonsense") is None
    assert read_trace(b"nonsense") is None
    assert read_trace(MAGIC + b"\xff\xff\xff\xff{}") is None
    for _ in range(200):
        spoiled = bytearray(packed)
        spoiled[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
        unpack(bytes(spoiled))
