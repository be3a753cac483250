"""The status page: what workers note, as their agent reads it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.native_groups import native_group, segment
from support.processes import soon

from torsh_runtime import status
from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.errors import CommMismatch, CommTimeout
from torshrun.health.pages import Awaited, Collective, StatusPages, WorkerStatus

SOON = 30.0
READINGS = 1000


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[StatusPages]:
    made = StatusPages(str(tmp_path / "status"), 2)
    yield made
    made.close()


class World:
    """Two ranks of this process, as groups on one shared segment."""

    def __init__(self, pages: list[status.Page], number: int = 0) -> None:
        self.descriptor = segment(2)
        self.groups = [
            native_group(self.descriptor, rank, [os.getpid()] * 2, page.next_record(number), number)
            for rank, page in enumerate(pages)
        ]
        other = threading.Thread(target=self.groups[1].handshake, args=(SOON,))
        other.start()
        self.groups[0].handshake(SOON)
        other.join(SOON)

    def both(self, call: str, *arguments: object) -> None:
        other = self.begin(1, call, *arguments)
        getattr(self.groups[0], call)(*arguments, SOON, False)
        other.join(SOON)

    def begin(self, rank: int, call: str, *arguments: object) -> threading.Thread:
        method = getattr(self.groups[rank], call)
        copies = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
        thread = threading.Thread(target=method, args=(*copies, SOON, False))
        thread.start()
        return thread

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.groups.clear()  # and with them the pages' memory
        os.close(self.descriptor)


def taken(tmp_path: Path, local_rank: int = 0) -> status.Page:
    page = status.take_page(str(tmp_path / "status"), local_rank)
    assert page is not None
    return page


@pytest.fixture
def world(tmp_path: Path, pages: StatusPages) -> Iterator[World]:
    made = World([taken(tmp_path, 0), taken(tmp_path, 1)])
    yield made
    made.close()


def last(pages: StatusPages, local_rank: int) -> Collective:
    collective = pages.read()[local_rank].collective
    assert collective is not None
    return collective


def test_a_fresh_page_says_nothing(pages: StatusPages) -> None:
    assert pages.read() == (WorkerStatus(), WorkerStatus())


def test_what_a_worker_notes_is_read(tmp_path: Path, pages: StatusPages) -> None:
    page = taken(tmp_path, 1)
    page.note_initialised()
    page.note_step(0)
    assert pages.read() == (WorkerStatus(), WorkerStatus(initialised=True, step=0))


@pytest.mark.parametrize(("step", "noted"), [(-1, None), (-7, None), (np.int64(3), 3), (4.0, 4)])
def test_any_number_may_be_a_step(
    tmp_path: Path, pages: StatusPages, step: int, noted: int | None
) -> None:
    taken(tmp_path).note_step(step)
    assert pages.read()[0].step == noted


def test_a_completed_operation_is_noted_with_its_facts(pages: StatusPages, world: World) -> None:
    before = last(pages, 0).rounds
    world.both("all_reduce", np.ones(3, np.float64), ReduceOp.MAX)
    expected = Collective(
        group=0,
        ranks=2,
        sequence=1,
        active=False,
        rounds=before + 1,
        operation="all_reduce",
        dtype="float64",
        reduction="MAX",
        count=3,
        root=-1,
        whole=True,
    )
    assert last(pages, 0) == last(pages, 1) == expected
    assert str(expected) == "all_reduce(float64[3], MAX)"


def test_an_operation_shows_its_root(pages: StatusPages, world: World) -> None:
    world.both("broadcast", np.ones(2, np.int32), 1)
    assert str(last(pages, 0)) == "broadcast(int32[2], src=1)"


def test_a_rank_that_waits_is_seen_inside(pages: StatusPages, world: World) -> None:
    waiting = world.begin(1, "all_reduce", np.ones(3, np.float32), ReduceOp.SUM)
    while not last(pages, 1).active:
        pass
    assert str(last(pages, 1)) == "all_reduce(float32[3], SUM)"
    assert (last(pages, 0).active, last(pages, 0).sequence) == (False, 0)
    world.groups[0].all_reduce(np.ones(3, np.float32), ReduceOp.SUM, SOON, False)
    waiting.join(SOON)
    assert not last(pages, 1).active


def test_an_operation_that_fails_is_left(pages: StatusPages, world: World) -> None:
    with pytest.raises(CommTimeout):
        world.groups[0].barrier(0.05, False)
    assert not last(pages, 0).active


def be_rank(rank: int, pids: list[int], descriptor: int, path: str) -> None:
    page = status.take_page(path, rank)
    assert page is not None
    group = native_group(descriptor, rank, pids, page.next_record(0))
    arrays = np.ones(1, np.float32), np.ones(2, np.float64)
    group.handshake(SOON)
    for number in itertools.count():
        group.all_reduce(arrays[number % 2], (ReduceOp.MIN, ReduceOp.MAX)[number % 2], SOON, False)


def test_a_record_is_consistent_while_it_changes(tmp_path: Path, pages: StatusPages) -> None:
    """Operations alternate; no reading that calls itself whole mixes two of them."""
    descriptor = segment(2)
    children: list[int] = []
    for rank in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                be_rank(rank, [0, 0], descriptor, str(tmp_path / "status"))
            finally:
                os._exit(1)
    os.close(descriptor)
    both = {(1, "all_reduce(float32[1], MIN)"), (0, "all_reduce(float64[2], MAX)")}
    seen: Counter[tuple[int, str]] = Counter()
    until = time.monotonic() + SOON
    try:
        while (seen.total() < READINGS or {*seen} != both) and time.monotonic() < until:
            found = pages.read()[0].collective
            if found is not None and found.whole and found.sequence:
                seen[found.sequence % 2, str(found)] += 1
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert {*seen} == both


def test_a_long_operation_advances(pages: StatusPages, world: World) -> None:
    before = last(pages, 0).rounds
    world.both("all_reduce", np.ones(1 << 20, np.float32), ReduceOp.SUM)
    assert last(pages, 0).rounds > before + 1


def test_groups_have_records_of_their_own(tmp_path: Path, pages: StatusPages) -> None:
    ranks = [taken(tmp_path, 0), taken(tmp_path, 1)]
    numbers = [0x7FFFFFFF - index for index in range(status.RECORDS + 1)]
    worlds = [World(ranks, number) for number in numbers]
    for count, each in enumerate(worlds[1:], 1):
        each.both("all_reduce", np.ones(count, np.int64), ReduceOp.SUM)
    found = {each.group: each.count for each in pages.read()[0].collectives}
    assert found == {number: count for count, number in enumerate(numbers[1:], 1)}
    for each in worlds:
        each.close()


def test_a_group_made_again_has_one_record(tmp_path: Path, pages: StatusPages) -> None:
    ranks = [taken(tmp_path, 0), taken(tmp_path, 1)]
    for count in range(1, 4):
        world = World(ranks, 5)
        world.both("all_reduce", np.ones(count, np.int64), ReduceOp.SUM)
        world.close()
    found = pages.read()[0].collectives
    assert [(each.group, each.sequence, each.count) for each in found] == [(5, 1, 3)]


def test_a_record_that_is_none_is_refused() -> None:
    descriptor = segment(1)
    with pytest.raises(ValueError, match="status page"):
        native_group(descriptor, 0, [os.getpid()], memoryview(bytearray(8)))
    with pytest.raises((TypeError, BufferError)):
        native_group(descriptor, 0, [os.getpid()], memoryview(bytes(128)))
    os.close(descriptor)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"torshpgs", bytes(4096), b"torshpgs" + bytes(4088), os.urandom(4096)],
    ids=["empty", "a byte", "only magic", "zeros", "no version", "noise"],
)
def test_a_file_that_is_none_of_ours_gives_no_page(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "status"
    file.write_bytes(content)
    assert status.take_page(str(file), 0) is None
    assert file.read_bytes() == content


def test_there_may_be_no_file_or_no_such_page(tmp_path: Path, pages: StatusPages) -> None:
    assert status.take_page(str(tmp_path / "nothing"), 0) is None
    assert status.take_page(str(tmp_path), 0) is None
    assert status.take_page(str(tmp_path / "status"), 2) is None
    assert status.take_page(str(tmp_path / "status"), -1) is None


def test_a_file_cut_short_gives_no_page(tmp_path: Path, pages: StatusPages) -> None:
    file = tmp_path / "status"
    cut = tmp_path / "cut"
    cut.write_bytes(file.read_bytes()[:-8])
    assert status.take_page(str(cut), 1) is None


REPORT = "import torsh_runtime as tr, sys; tr.report_step(int(sys.argv[1]))"


def report_in_a_process(step: int, code: str = REPORT, **environ: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORSH_")}
    subprocess.run(
        [sys.executable, "-c", code, str(step)],
        env={**kept, **environ},
        check=True,
        timeout=60,
    )


def place(tmp_path: Path, local_rank: int) -> dict[str, str]:
    return {
        "RANK": str(local_rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(local_rank),
        "TORSH_STATUS_FILE": str(tmp_path / "status"),
    }


def test_a_step_is_reported_without_a_group(tmp_path: Path, pages: StatusPages) -> None:
    report_in_a_process(7, **place(tmp_path, 1))
    assert [each.step for each in pages.read()] == [None, 7]


def test_without_torshrun_a_step_goes_nowhere() -> None:
    report_in_a_process(7)
    report_in_a_process(7, TORSH_STATUS_FILE="/nowhere/at/all", RANK="0", WORLD_SIZE="1")


def test_a_child_of_a_worker_does_not_write_its_parents_page(
    tmp_path: Path, pages: StatusPages
) -> None:
    code = f"{REPORT}; import os, subprocess\n" + (
        "if not os.fork():\n"
        "    tr.report_step(8); os._exit(0)\n"
        "os.wait()\n"
        f"subprocess.run([sys.executable, '-c', {REPORT!r}, '9'], check=True)\n"
    )
    report_in_a_process(7, code, **place(tmp_path, 0))
    assert pages.read()[0].step == 7


def test_the_next_program_of_a_worker_begins_afresh(tmp_path: Path, pages: StatusPages) -> None:
    report_in_a_process(7, **place(tmp_path, 0))
    report_in_a_process(-1, **place(tmp_path, 0))
    assert pages.read()[0] == WorkerStatus()


def test_joining_a_group_is_noted(tmp_path: Path, pages: StatusPages) -> None:
    code = "import torsh_runtime as tr; tr.init_process_group()"
    env = {**place(tmp_path, 0), "WORLD_SIZE": "1"}
    report_in_a_process(0, code, **env)
    assert [each.initialised for each in pages.read()] == [True, False]


def test_a_list_of_arrays_is_noted_with_its_length_and_all_its_elements(
    world: World, pages: StatusPages
) -> None:
    world.both("all_gather", [np.zeros(3), np.zeros(3)], np.ones(3))
    assert str(last(pages, 0)) == "all_gather(2 arrays of 6 float64 in all)"

    def gather(rank: int) -> None:
        array = np.ones(3 + rank)
        with pytest.raises(CommMismatch, match=r"all_gather\(2 x float64\[4\]\)"):
            world.groups[rank].all_gather([array.copy(), array.copy()], array, SOON, False)

    other = threading.Thread(target=gather, args=(1,))
    other.start()
    gather(0)
    other.join(SOON)


def test_a_message_that_is_waited_for_is_noted_with_one_that_has_come_instead(
    world: World, pages: StatusPages
) -> None:
    def awaited() -> Awaited | None:
        return pages.read()[0].awaited

    receiving = threading.Thread(target=lambda: world.groups[0].recv(np.ones(4), 1, 7, SOON, False))
    receiving.start()
    call = "recv(src=1, tag=7)"
    assert soon(lambda: awaited() == Awaited(1, f"waits in {call}", call))
    world.groups[1].send(np.ones(2), 0, 8, SOON, False)
    assert soon(lambda: awaited() == Awaited(1, f"waits in {call}", call, 8))
    world.groups[1].send(np.ones(4), 0, 7, SOON, False)
    receiving.join(SOON)
    assert awaited() is None
