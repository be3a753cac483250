"""The pump, through real pipes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torshrun.workers import logs
from torshrun.workers.logs import LogPump, Stream, insert_prefix


class Terminal:
    """A pump whose outputs end in pipes that are read here."""

    def __init__(self) -> None:
        self.out, out_end = os.pipe()
        self.err, err_end = os.pipe()
        self._ends = (out_end, err_end)
        self.pump = LogPump(out_end, err_end)
        self.writers: dict[int, int] = {}
        self.streams: list[Stream] = []

    def worker(self, rank: int, path: str = "", to_stderr: bool = False) -> Callable[[bytes], int]:
        """What writes as this worker does."""
        reading, self.writers[rank] = os.pipe()
        sink = self.pump.stderr if to_stderr else self.pump.stdout
        self.streams.append(self.pump.add(reading, f"[{rank}] ", sink, path))
        return lambda data: os.write(self.writers[rank], data)

    def finish(self) -> bytes:
        """End all workers, and give what is left on stdout."""
        self.end()
        return self.rest(self.out)

    def end(self) -> None:
        """End all workers; whoever reads stdout then comes to its end."""
        for fd in self.writers.values():
            os.close(fd)
        self.pump.close()
        assert self.pump.is_closed(5)
        for fd in self._ends:
            os.close(fd)

    def rest(self, fd: int) -> bytes:
        data = b""
        while chunk := os.read(fd, 65536):
            data += chunk
        return data


def settle(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    for fd in (made.out, made.err):
        os.close(fd)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\n", b"a\n"),
        (b"a", b"a"),
        (b"a\nb\n", b"a\n> b\n"),
        (b"a\nb", b"a\n> b"),
        (b"1%\r2%\r", b"1%\r> 2%\r"),
        (b"a\r\nb\r\n", b"a\r\n> b\r\n"),
        (b"\n\n", b"\n> \n"),
        (b"\xff\xfe\n\x00\n", b"\xff\xfe\n> \x00\n"),
    ],
)
def test_prefixes_stand_after_line_ends_inside(data: bytes, expected: bytes) -> None:
    assert insert_prefix(data, b"> ") == expected


def test_lines_are_prefixed(terminal: Terminal) -> None:
    write = terminal.worker(3)
    write(b"one\ntwo\n\xff\xfe\n")
    assert terminal.finish() == b"[3] one\n[3] two\n[3] \xff\xfe\n"


def test_stderr_goes_to_stderr(terminal: Terminal) -> None:
    terminal.worker(0, to_stderr=True)(b"oops\n")
    assert terminal.finish() == b""
    assert terminal.rest(terminal.err) == b"[0] oops\n"


def test_a_line_in_pieces_is_not_torn_by_another_rank(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PARTIAL_SECONDS", 60.0)
    first, second = terminal.worker(0), terminal.worker(1)
    first(b"begin ")
    settle(lambda: terminal.streams[0].partial)
    second(b"other\n")
    assert os.read(terminal.out, 100) == b"[1] other\n"
    first(b"end\n")
    assert terminal.finish() == b"[0] begin end\n"


def test_an_unfinished_line_appears_after_a_while_and_goes_on(terminal: Terminal) -> None:
    write = terminal.worker(0)
    write(b"name? ")
    assert os.read(terminal.out, 100) == b"[0] name? "
    write(b"yes\nnext\n")
    assert terminal.finish() == b"yes\n[0] next\n"


def test_another_rank_begins_a_new_line_behind_an_unfinished_one(terminal: Terminal) -> None:
    first, second = terminal.worker(0), terminal.worker(1)
    first(b"name? ")
    assert os.read(terminal.out, 100) == b"[0] name? "
    second(b"hello\n")
    assert os.read(terminal.out, 100) == b"\n[1] hello\n"
    first(b"yes\n")
    assert terminal.finish() == b"[0] yes\n"


def test_a_line_beyond_64_kib_is_passed_on(terminal: Terminal) -> None:
    write = terminal.worker(0)
    received = bytearray()
    reader = threading.Thread(target=lambda: received.extend(terminal.rest(terminal.out)))
    reader.start()
    for _ in range(20):
        write(b"x" * 10_000)
    write(b"\n")
    terminal.end()
    reader.join(5)
    assert bytes(received) == b"[0] " + b"x" * 200_000 + b"\n"


def test_carriage_returns_pass_at_once_and_each_bar_has_its_prefix(terminal: Terminal) -> None:
    write = terminal.worker(0)
    write(b"1%\r")
    assert os.read(terminal.out, 100) == b"[0] 1%\r"
    write(b"2%\r3%\n")
    assert terminal.finish() == b"[0] 2%\r[0] 3%\n"


def test_a_return_and_newline_in_two_pieces_end_one_line(terminal: Terminal) -> None:
    write = terminal.worker(0)
    write(b"done\r")
    assert os.read(terminal.out, 100) == b"[0] done\r"
    write(b"\nnext\n")
    assert terminal.finish() == b"\n[0] next\n"


def test_many_writers_tear_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PARTIAL_SECONDS", 60.0)
    received = bytearray()
    reader = threading.Thread(target=lambda: received.extend(terminal.rest(terminal.out)))
    reader.start()
    writers = [terminal.worker(rank) for rank in range(4)]

    def work(rank: int) -> None:
        for number in range(2000):
            line = b"%d-%d-%s\n" % (rank, number, b"y" * (number % 90))
            middle = number % len(line)
            writers[rank](line[:middle])
            writers[rank](line[middle:])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    terminal.end()
    reader.join(5)
    for rank in range(4):
        mine = [line for line in received.split(b"\n") if line.startswith(b"[%d] " % rank)]
        expected = [
            b"[%d] %d-%d-%s" % (rank, rank, number, b"y" * (number % 90)) for number in range(2000)
        ]
        assert mine == expected


def test_the_file_gets_the_raw_bytes(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    write = terminal.worker(0, str(path))
    write(b"a\r\xffb")
    terminal.finish()
    assert path.read_bytes() == b"a\r\xffb"


def test_the_tail_is_the_end(terminal: Terminal) -> None:
    write = terminal.worker(0, to_stderr=True)
    for number in range(3000):
        write(b"line %d\n" % number)
    done = threading.Event()
    reader = threading.Thread(target=lambda: terminal.rest(terminal.err))
    reader.start()
    terminal.pump.drain(terminal.streams, done.set)
    assert done.wait(5)
    tail = terminal.streams[0].tail()
    assert len(tail) == logs.TAIL_BYTES
    assert tail.endswith(b"line 2998\nline 2999\n")
    terminal.end()
    reader.join(5)


def test_draining_does_not_wait_for_writers_that_live_on(terminal: Terminal) -> None:
    write = terminal.worker(0)
    write(b"last words")
    done = threading.Event()
    terminal.pump.drain(terminal.streams, done.set)
    assert done.wait(5)
    assert os.read(terminal.out, 100) == b"[0] last words"
    terminal.finish()


def test_workers_go_on_when_the_reader_is_gone(terminal: Terminal) -> None:
    os.close(terminal.out)
    terminal.out = os.open(os.devnull, os.O_RDONLY)
    write = terminal.worker(0)
    for _ in range(100):  # far more than the pipe holds
        write(b"z" * 9999 + b"\n")
    terminal.finish()


def test_a_reader_who_does_not_read_stalls_workers_and_not_the_agent(terminal: Terminal) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    terminal.pump.add(reading, "[0] ", terminal.pump.stdout)
    total = 0
    line = b"w" * 999 + b"\n"
    idle = 0
    while idle < 20:
        try:
            total += os.write(writing, line)
            idle = 0
        except BlockingIOError:
            idle += 1
            time.sleep(0.005)
    assert total < 1_000_000  # bounded by the pipes and one chunk, not by memory
    terminal.pump.say("torshrun: still here")  # returns at once
    received = bytearray()
    reader = threading.Thread(target=lambda: received.extend(terminal.rest(terminal.out)))
    reader.start()
    os.close(writing)
    terminal.end()
    reader.join(5)
    assert received.count(b"[0] www") == total // len(line)
    assert terminal.rest(terminal.err) == b"torshrun: still here\n"


def test_what_the_agent_says_begins_a_new_line(terminal: Terminal) -> None:
    terminal.worker(0, to_stderr=True)(b"partial")
    assert os.read(terminal.err, 100) == b"[0] partial"
    terminal.pump.say("torshrun: hello")
    terminal.finish()
    assert terminal.rest(terminal.err) == b"\ntorshrun: hello\n"
