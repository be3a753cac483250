"""The recording of operations: what groups note, and how it is read."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.native_groups import native_group, segment

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.native import _native
from torsh_runtime.errors import CommTimeout
from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.layout import Operation, operations_of, tallies_of, words_of
from torshrun.health.recordings import Recordings, read_recordings

SOON = 30.0


class Pair:
    """Two ranks of this process that note their operations."""

    def __init__(self, number: int = 0) -> None:
        self.memory = [memoryview(mmap.mmap(-1, layout.RECORDING_BYTES)) for _ in range(2)]
        self.descriptor = segment(2)
        for memory in self.memory:
            _native.open_recording(memory)
        self.groups = [
            native_group(self.descriptor, rank, [os.getpid()] * 2, None, number, memory)
            for rank, memory in enumerate(self.memory)
        ]
        self.both("handshake", last=())

    def both(self, call: str, *arguments: object, last: tuple[object, ...] = (False,)) -> None:
        """Call it on both ranks, each with copies of the arrays."""
        threads = []
        for group in self.groups:
            own = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
            method = partial(getattr(group, call), *own, SOON, *last)
            threads.append(threading.Thread(target=method))
            threads[-1].start()
        for thread in threads:
            thread.join(SOON)

    def read(self, rank: int) -> list[Operation]:
        return operations_of(words_of(self.memory[rank]), words_of(self.memory[rank]))

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.groups.clear()
        os.close(self.descriptor)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(number=7)
    yield made
    made.close()


def test_the_layout_is_that_of_the_compiled_library() -> None:
    assert _native.RECORDING_BYTES == layout.RECORDING_BYTES


def test_operations_are_noted_with_their_times(pair: Pair) -> None:
    pair.both("all_reduce", np.ones(3, np.float32), ReduceOp.MAX)
    pair.both("broadcast", np.ones(5), 1)
    meeting, reduced, sent = pair.read(0)
    assert (meeting.operation, meeting.sequence, meeting.group) == ("barrier", 0, 7)
    assert reduced[:4] == (1, "all_reduce", "float32", "MAX")
    assert (reduced.elements, reduced.nbytes, reduced.ranks, reduced.state) == (3, 12, 2, "done")
    assert (sent.operation, sent.root, sent.elements, sent.sequence) == ("broadcast", 1, 5, 2)
    for each in (meeting, reduced):
        assert each.came is not None
        assert each.left is not None
        assert each.entered <= each.came <= each.left <= sent.entered


def test_an_operation_that_nobody_else_calls_is_running_and_then_failed(pair: Pair) -> None:
    seen: list[Operation] = []

    def call() -> None:
        with pytest.raises(CommTimeout):
            pair.groups[0].all_reduce(np.ones(1), ReduceOp.SUM, 0.5, False)

    caller = threading.Thread(target=call)
    caller.start()
    while caller.is_alive() and not seen:
        seen = [each for each in pair.read(0) if each.state == "running"]
    caller.join(SOON)
    assert (seen[0].operation, seen[0].came, seen[0].left) == ("all_reduce", None, None)
    last = pair.read(0)[-1]
    assert (last.state, last.came) == ("failed", None)
    assert last.left is not None
    assert last.left - last.entered >= 0.5


def test_messages_are_noted_with_their_number_in_each_direction(pair: Pair) -> None:
    one, other = pair.groups
    for count in (3, 5):
        one.send(np.ones(count), 1, 9, SOON, False)
    other.recv(np.ones(3), 0, 9, SOON, False)
    other.recv(np.ones(5), _native.ANY_SOURCE, None, SOON, False)
    other.send_object(np.zeros(7, np.uint8), 0, 1, SOON, False)
    one.take_object(1, 1, SOON, False)
    sent, received = pair.read(0)[1:], pair.read(1)[1:]
    expected = [("send", 1, 1, 3, 24), ("send", 1, 2, 5, 40), ("recv", 1, 1, 7, 7)]
    assert list(map(message, sent)) == expected
    expected = [("recv", 0, 1, 3, 24), ("recv", 0, 2, 5, 40), ("send", 0, 1, 7, 7)]
    assert list(map(message, received)) == expected
    for each in (*sent, *received):
        told = (each.state, each.path, each.in_background, each.group, each.ranks)
        assert told == ("done", "shared memory", False, 7, 2)
        assert (each.came is not None) == (each.operation == "recv")
    (counted,) = (each for each in tallies_of(words_of(pair.memory[1])) if each.nbytes == 40)
    assert (counted.operation, counted.calls) == ("recv", 1)
    assert 0 <= counted.waited <= counted.seconds


def message(operation: Operation) -> tuple[object, ...]:
    return (
        operation.operation,
        operation.root,
        operation.sequence,
        operation.elements,
        operation.nbytes,
    )


def when_waiting(pair: Pair, work: Any, then: Callable[[], object]) -> None:
    """Wait for what rank 0 has begun, and call `then` when it waits."""
    waiter = threading.Thread(target=work.wait, args=(None,))
    waiter.start()
    while not any(each.operation == "wait" and each.state == "running" for each in pair.read(0)):
        assert waiter.is_alive()
    then()
    waiter.join(SOON)


def test_waits_say_what_is_waited_for(pair: Pair) -> None:
    one, other = pair.groups
    room = np.zeros(1)
    coming = one.recv(room, 1, 0, SOON, True)
    when_waiting(pair, coming, lambda: other.send(np.ones(1), 0, 0, SOON, False))
    reduced = one.all_reduce(room, ReduceOp.SUM, SOON, True)
    when_waiting(pair, reduced, lambda: other.all_reduce(np.ones(1), ReduceOp.SUM, SOON, False))
    assert one.recv(room, 1, 1, SOON, True).wait(0.0) is False  # a look is no wait
    # The wait for it may begin before the queue's thread does the operation.
    held = sorted(pair.read(0)[1:], key=lambda each: (each.operation, -each.root))
    operation, received, _, for_message, for_operation = held
    for wait, awaited in ((for_message, received), (for_operation, operation)):
        assert (wait.operation, wait.state, wait.elements, wait.nbytes) == ("wait", "done", 0, 0)
        assert (wait.awaited, wait.sequence) == (awaited.number, awaited.sequence)
        assert awaited.in_background
        assert not wait.in_background
        assert wait.left is not None
        assert awaited.left is not None
        assert awaited.left <= wait.left
    assert (for_message.root, for_operation.root) == (1, -1)
    assert (received.sequence, operation.sequence) == (1, 1)


def test_what_is_still_under_way_stays_whatever_begins(pair: Pair) -> None:
    one, other = pair.groups
    pending = one.recv(np.zeros(1), 1, 5, SOON, True)
    for _ in range(2 * layout.ENTRIES):
        one.send(np.zeros(1), 1, 0, SOON, False)
        other.recv(np.zeros(1), 0, 0, SOON, False)
    held = pair.read(0)
    assert (held[0].operation, held[0].state, held[0].number) == ("recv", "running", 1)
    assert len(held) == layout.ENTRIES
    assert [each.sequence for each in held[-2:]] == [2 * layout.ENTRIES - 1, 2 * layout.ENTRIES]
    other.send(np.zeros(1), 0, 5, SOON, False)
    pending.wait(None)
    assert pair.read(0)[0].number > 1


def test_very_many_under_way_leave_room_for_later_ones(pair: Pair) -> None:
    one, other = pair.groups
    rooms = [one.recv(np.zeros(1), 1, 5, SOON, True) for _ in range(layout.ENTRIES + 50)]
    one.send(np.zeros(1), 1, 0, SOON, False)
    assert pair.read(0)[-1].operation == "send"
    for _ in rooms:
        other.send(np.zeros(1), 0, 5, SOON, False)
    for each in rooms:
        each.wait(None)
    assert [each.state for each in pair.read(0)].count("running") == 0


def test_a_message_that_fails_is_told(pair: Pair) -> None:
    with pytest.raises(CommTimeout):
        pair.groups[0].recv(np.zeros(1), 1, 0, 0.1, False)
    last = pair.read(0)[-1]
    assert (last.operation, last.state, last.root, last.sequence) == ("recv", "failed", 1, 0)


def test_the_last_ones_are_held_and_all_are_counted(pair: Pair) -> None:
    calls = layout.ENTRIES + 100

    def call(group: _native.Group) -> None:
        array = np.zeros(2)
        for _ in range(calls):
            group.all_reduce(array, ReduceOp.SUM, SOON, False)

    other = threading.Thread(target=call, args=(pair.groups[1],))
    other.start()
    call(pair.groups[0])
    other.join(SOON)
    held = pair.read(0)
    assert [each.number for each in held] == list(range(calls + 1 - layout.ENTRIES, calls + 1))
    assert [each.sequence for each in held] == [each.number for each in held]
    (reduced,) = (
        each for each in tallies_of(words_of(pair.memory[0])) if each.operation == "all_reduce"
    )
    assert (reduced.calls, reduced.nbytes, reduced.size_class) == (calls, 16 * calls, 5)
    assert 0 < reduced.waited <= reduced.seconds
    durations = layout.durations_of(words_of(pair.memory[0]))["all_reduce"]
    assert sum(number for _, number in durations) == calls


@given(st.binary(min_size=1, max_size=64), st.integers(0, layout.RECORDING_BYTES - 64))
def test_nonsense_is_read_without_an_error(noise: bytes, at: int) -> None:
    content = bytearray(layout.RECORDING_BYTES)
    content[:64] = struct.pack("=8Q", 2000, 2, 1, 1, 10**9, 10**9, 0, 0)
    content[at : at + len(noise)] = noise
    words = words_of(bytes(content))
    assert len(operations_of(words, words)) <= layout.ENTRIES
    list(tallies_of(words))
    layout.durations_of(words)


def test_a_count_of_nonsense_takes_no_time() -> None:
    content = struct.pack("=8Q", 2**64 - 1, 2, 1, 1, 10**9, 10**9, 0, 0)
    words = words_of(content)
    assert operations_of(words, words) == []


def test_the_agents_file_is_read_by_others_and_nonsense_is_none(tmp_path: Path) -> None:
    status = str(tmp_path / "status")
    made = Recordings.make(status, 2)
    assert made.copy() == b""
    with Path(layout.file_beside(status)).open("r+b") as file:
        file.seek(layout.HEADER_BYTES + layout.STRIDE)
        file.write(b"\1")
    assert len(made.copy()) == layout.HEADER_BYTES + 2 * layout.STRIDE
    assert not any(any(record) for record in read_recordings(status)[1])
    made.close()
    Path(layout.file_beside(status)).write_bytes(b"nonsense")
    assert read_recordings(status)[1] == []
    assert read_recordings(str(tmp_path / "nothing"))[1] == []


def test_without_room_nothing_is_recorded(tmp_path: Path) -> None:
    made = Recordings.make(str(tmp_path / "missing" / "status"), 2)
    assert made.copy() == b""
    made.close()
