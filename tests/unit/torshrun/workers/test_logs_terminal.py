"""The pump on a terminal: a pseudo-terminal whose other side the test reads."""

from __future__ import annotations

import os
import termios
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from support.processes import soon
from support.screen import Screen

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig, StreamRule, Streams
from torshrun.safe_files import Folder
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.logs.stream import Stream

ROWS, COLUMNS = 6, 40
PLAIN = {"NO_COLOR": "1"}


class Window:
    """A terminal with a pump on it, and a screen that shows what it gets."""

    def __init__(self, output: OutputConfig, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self._master, self._slave = os.openpty()
        self.size(ROWS, COLUMNS)
        self.received = bytearray()
        self.screen = Screen(ROWS, COLUMNS)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self._held = Folder(str(folder), os.open(folder, os.O_RDONLY))
        self.pump = LogPump(output, self._held, self._slave, self._slave, environ)
        self.workers: list[tuple[Stream, ...]] = []

    def size(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self._slave, (rows, columns))

    def worker(self, rank: int) -> tuple[Stream, ...]:
        place = WorkerEnv(rank=rank, world_size=8, local_rank=rank, local_world_size=8)
        self.workers.append(self.pump.open(place, str(self.folder)))
        return self.workers[-1]

    def shows(self, *rows: str) -> bool:
        return soon(lambda: self.screen.text() == list(rows))

    def end(self) -> None:
        for stream in chain.from_iterable(self.workers):
            os.close(stream.source.end)
        self.pump.close()
        assert self.pump.is_closed(10)
        self._held.close()

    def close(self) -> None:
        os.close(self._slave)
        self._thread.join(10)
        os.close(self._master)

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65536):
                self.received += data
                self.screen.feed(data)
        except OSError:  # EIO: the other side is closed
            pass


Open = Callable[..., Window]


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Open]:
    made: list[Window] = []

    def open_window(environ: dict[str, str] = PLAIN, **output: object) -> Window:
        made.append(Window(OutputConfig(**output), tmp_path, environ))  # type: ignore[arg-type]
        return made[-1]

    yield open_window
    for each in made:
        each.close()


def test_workers_find_terminals_that_change_nothing(window: Open) -> None:
    each = window(log_dir="anywhere")
    made = each.worker(0)
    assert os.isatty(made[0].source.end)
    assert os.isatty(made[1].source.end)
    assert not os.path.samestat(os.fstat(made[0].source.end), os.fstat(made[1].source.end))
    os.write(made[1].source.end, b"a\nb\x03\x04\xff\n")
    each.end()
    assert (each.folder / "stderr.log").read_bytes() == b"a\nb\x03\x04\xff\n"
    assert made[1].tail == b"a\nb\x03\x04\xff\n"
    assert made[1].received == 7


def test_redirected_and_hidden_streams_find_pipes(window: Open) -> None:
    each = window(redirects=StreamRule(everyone=Streams.STDOUT), ranks_filter=frozenset({1}))
    hidden, shown = each.worker(0), each.worker(1)
    terminals = [os.isatty(stream.source.end) for stream in (*hidden, *shown)]
    assert terminals == [False, False, False, True]
    each.end()


def test_the_window_is_as_wide_as_the_terminal_less_the_prefix(window: Open) -> None:
    each = window()
    made = each.worker(0)
    assert termios.tcgetwinsize(made[0].source.end) == (ROWS, COLUMNS - len("[0] "))
    each.size(20, 100)
    each.pump.resize()
    assert soon(lambda: termios.tcgetwinsize(made[-1].source.end) == (20, 96))
    assert each.pump.status_width == 100
    each.end()


def test_a_tiny_window_leaves_a_column(window: Open) -> None:
    each = window(log_timestamps=True)
    assert termios.tcgetwinsize(each.worker(0)[0].source.end) == (ROWS, 40 - 4 - 25)
    each.size(2, 3)
    assert termios.tcgetwinsize(each.worker(1)[0].source.end) == (2, 1)
    each.end()


def test_last_words_are_drained(window: Open) -> None:
    apart, one = window(log_dir="anywhere"), window()
    for each, received, tail in (
        (apart, [3001, 10], b"last words"),
        (one, [3011], b"x" * 3000 + b"\nlast words"),
    ):
        made = each.worker(0)
        os.write(made[0].source.end, b"x" * 3000 + b"\n")
        os.write(made[-1].source.end, b"last words")
        done = threading.Event()
        each.pump.drain(made, done.set)
        assert done.wait(5)
        assert [stream.received for stream in made] == received
        assert made[-1].tail == tail
        each.end()


def test_a_worker_has_one_terminal_for_both_unless_one_is_asked_for_alone(window: Open) -> None:
    one = window(log_timestamps=True)
    (made,) = one.worker(0)
    os.write(made.source.end, b"both\n")
    one.end()
    assert made.tail == b"both\n"
    only_stderr = StreamRule(everyone=Streams.STDERR)
    for asked in (
        {"log_dir": "anywhere"},
        {"tee": only_stderr},
        {"redirects": only_stderr},
        {"ranks_filter": frozenset({1})},
    ):
        each = window(**asked)
        assert len(each.worker(0)) == 2, asked
        each.end()


def test_much_output_comes_through_whole(window: Open) -> None:
    each = window()
    made = each.worker(0)
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    view = memoryview(lines)
    while view:
        view = view[os.write(made[0].source.end, view) :]
    each.end()
    assert soon(lambda: each.received.count(b"\n") == 50_000)
    shown = each.received.replace(b"\r\n", b"\n").replace(b"[0] ", b"")
    assert shown == lines


def test_colours_unless_nobody_wants_them(window: Open) -> None:
    coloured, plain = window({}), window(PLAIN)
    for each in (coloured, plain):
        os.write(each.worker(1)[0].source.end, b"a\n")
        each.end()
        assert each.shows("[1] a")
    assert coloured.received == b"\x1b[38;5;166m[1] \x1b[0ma\r\n"
    assert plain.received == b"[1] a\r\n"


def test_the_status_line_stays_below_and_goes(window: Open) -> None:
    each = window()
    made = each.worker(0)
    assert each.pump.status_width
    os.write(made[0].source.end, b"one\n")
    assert each.shows("[0] one")
    each.pump.set_status("2/2 workers")
    assert each.shows("[0] one", "2/2 workers")
    os.write(made[0].source.end, b"name? ")
    assert each.shows("[0] one", "[0] name?", "2/2 workers")
    os.write(made[0].source.end, b"yes\n")
    assert each.shows("[0] one", "[0] name? yes", "2/2 workers")
    each.pump.say("torshrun: hello")
    each.pump.set_status("1/2\nworkers")
    assert each.shows("[0] one", "[0] name? yes", "torshrun: hello", "1/2 workers")
    each.end()
    assert each.shows("[0] one", "[0] name? yes", "torshrun: hello")


def test_a_shorter_line_does_not_stand_on_anothers_bar(window: Open) -> None:
    each = window()
    first, second = each.worker(0), each.worker(1)
    os.write(first[0].source.end, b"100% ##########\r")
    assert each.shows("[0] 100% ##########")
    os.write(second[0].source.end, b"hi\n")
    assert each.shows("[1] hi")
    each.end()


@pytest.mark.parametrize(
    ("environ", "rule"), [({"TERM": "dumb"}, "auto"), ({"TERM": "xterm"}, "never")]
)
def test_no_status_line_where_none_is_wanted(
    window: Open, environ: dict[str, str], rule: str
) -> None:
    each = window(environ, status_line=rule, color="never")
    assert not each.pump.status_width
    each.pump.set_status("busy")
    each.pump.say("hello")
    each.end()
    assert soon(lambda: each.received == b"hello\r\n")
