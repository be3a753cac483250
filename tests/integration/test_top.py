"""torshctl top on a terminal, of a real job, and printed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launcher import Launcher
from support.screen import Screen

PATIENCE = 60
SCRIPT = """
import numpy as np
import torsh_runtime as tr
tr.init_process_group()
for step in range(5):
    tr.monitoring.step(step)
    tr.all_reduce(np.ones(8, np.float32))
if rank == 1:
    tr.monitoring.section("da\\x1b[2Jta").__enter__()
    open("waits", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
tr.all_reduce(np.ones(8, np.float32))
"""


class Top:
    """torshctl top on a terminal of its own."""

    def __init__(self, torshrun: Launcher, *arguments: str, rows: int = 24) -> None:
        self.screen = Screen(rows, 80)
        self._main, terminal = pty.openpty()
        self.resize(rows, 80)
        self.before = termios.tcgetattr(terminal)
        self._terminal = terminal
        self.process = torshrun.start(
            *("top", *arguments, "--interval", "0.1"),
            command=(sys.executable, "-m", "torshrun.ctl"),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**torshrun.environ, "TERM": "xterm", "NO_COLOR": "1"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, rows: int, columns: int) -> None:
        """The kernel sends SIGWINCH."""
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._main, keys)

    def shows(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The screen's rows once they fulfil the condition."""
        deadline = time.monotonic() + PATIENCE
        while not (self.screen.is_other and condition(self.screen.rows)):
            assert time.monotonic() < deadline, self.screen.text()
            if select.select([self._main], [], [], 0.1)[0]:
                self.screen.feed(os.read(self._main, 65536))
        return [row.rstrip() for row in self.screen.rows]

    def end(self) -> int:
        """Its exit code, after it has left the terminal as it was."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None or select.select([self._main], [], [], 0.1)[0]:
            assert time.monotonic() < deadline, self.screen.text()
            if select.select([self._main], [], [], 0.1)[0]:
                self.screen.feed(os.read(self._main, 65536))
        assert not self.screen.is_other
        assert self.screen.shows_cursor
        assert self.screen.text() == []
        assert termios.tcgetattr(self._terminal) == self.before
        os.close(self._main)
        os.close(self._terminal)
        return self.process.returncode


@pytest.fixture
def waiting(torshrun: Launcher) -> Iterator[subprocess.Popen[str]]:
    """A job whose rank 0 waits for rank 1."""
    job = torshrun.start("--nproc-per-node=2", torshrun.script(SCRIPT))
    torshrun.wait_for("waits")
    yield job
    torshrun.make("go")
    job.communicate(timeout=PATIENCE)


def has(text: str) -> Callable[[list[str]], bool]:
    return lambda rows: any(text in row for row in rows)


def test_a_job_on_the_terminal(torshrun: Launcher, waiting: subprocess.Popen[str]) -> None:
    top = Top(torshrun, str(waiting.pid))
    found = (
        (0, f"pid {waiting.pid}: "),
        (1, "2 ranks of "),
        (1, "step 4"),
        (3, "rank 1 never entered all_reduce(float32[8], SUM) #6"),
        (5, "waits for rank 1"),
        (6, "   1       4 #"),
        (6, "in data"),
        (23, "q quit  s sort: rank"),
    )
    top.shows(lambda rows: all(text in rows[place] for place, text in found))
    top.type(b"s")
    top.shows(has("sort: waiting"))
    top.type(b"p")
    top.shows(has("paused"))
    top.type(b"p")
    top.screen = Screen(10, 132)
    top.screen.feed(b"\x1b[?1049h\x1b[?25l\x1b[?7l")  # as it was before
    top.resize(10, 132)
    top.shows(lambda rows: "in all_reduce #6" in rows[5] and rows[9].startswith("q quit"))
    torshrun.make("go")
    top.shows(lambda rows: rows[0].startswith("ended"))
    top.type(b"q")
    assert top.end() == 0


def test_signals_leave_the_terminal_as_it_was(
    torshrun: Launcher, waiting: subprocess.Popen[str]
) -> None:
    top = Top(torshrun, str(waiting.pid))
    top.shows(has("waits for rank 1"))
    top.type(b"\x03")
    assert top.end() == 128 + signal.SIGINT
    top = Top(torshrun, str(waiting.pid))
    top.shows(has("waits for rank 1"))
    top.process.send_signal(signal.SIGTERM)
    assert top.end() == 128 + signal.SIGTERM


def printed(torshrun: Launcher, *arguments: str) -> tuple[int, str, str]:
    process = torshrun.start("top", *arguments, command=(sys.executable, "-m", "torshrun.ctl"))
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_one_picture_where_there_is_no_terminal(
    torshrun: Launcher, waiting: subprocess.Popen[str]
) -> None:
    code, out, err = printed(torshrun, str(waiting.pid))
    assert (code, err) == (0, "")
    assert "waits for rank 1 in all_reduce #6" in out
    assert "\x1b" not in out
    code, out, _ = printed(torshrun, "--at", "-3600s", str(waiting.pid))
    assert code == 0
    assert out.splitlines()[0].startswith("60 min before now")
    assert out.count("nothing is recorded") == 2


def test_a_finished_job_as_it_was_before_its_end(torshrun: Launcher, tmp_path: Path) -> None:
    path = torshrun.script(SCRIPT + "\nif rank == 0:\n    time.sleep(1.5)\n    sys.exit(3)\n")
    torshrun.make("go")
    code, _, _ = torshrun.run("--nproc-per-node=2", "--log-dir", str(tmp_path / "logs"), path)
    assert code == 3
    code, out, err = printed(torshrun, str(tmp_path / "logs"), "--at", "-0.5s")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("500 ms before the end")
    assert "in data" in out


def test_where_there_is_nothing(torshrun: Launcher) -> None:
    (torshrun.folder / "empty").mkdir()
    code, _, err = printed(torshrun, "empty")
    assert (code, "no recorded operations" in err) == (1, True)
    assert printed(torshrun, str(os.getpid()))[0] == 1
    assert printed(torshrun, "--at", "30s")[0] == 2
    assert printed(torshrun, "--interval", "soon")[0] == 2
