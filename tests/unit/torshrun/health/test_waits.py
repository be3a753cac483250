"""What processes wait for in the kernel, by real ones that wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import soon

from torshrun.health.waits import lock_holder, wait_of

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts Python on a line that prints when it is ready."""
    begun: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=pipe,
            stdout=pipe,
            text=True,
            cwd=tmp_path,
            start_new_session=True,
        )
        begun.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)  # what it has forked too
        process.communicate()


def awaited(process: subprocess.Popen[str], words: str) -> bool:
    def is_told() -> bool:
        found = wait_of(process.pid)
        return bool(found and words in found.what)

    return soon(is_told)


LOCK = "import fcntl; f = open('build.lock', 'w'); {}; fcntl.flock(f, fcntl.LOCK_EX); {}"


def test_a_lock_is_named_with_who_holds_it(start: Start, tmp_path: Path) -> None:
    holder = start(LOCK.format("0", "print(flush=True); input()"))
    waiting = start(LOCK.format("print(flush=True)", "0"))
    name = Path(sys.executable).resolve().name[:15]
    assert awaited(waiting, f"the lock of {tmp_path}/build.lock, which {name[:6]}")
    found = wait_of(waiting.pid)
    assert found is not None
    assert found.holder == holder.pid
    assert f"(pid {holder.pid}) holds" in found.what


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; print(flush=True); sys.stdin.read()", "data from stdin, a pipe"),
        (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); print(flush=True)\n"
            "s.accept()",
            "a connection to its port ",
        ),
        (
            "import os, time\npid = os.fork()\nif not pid: time.sleep(60); os._exit(0)\n"
            "print(flush=True); os.waitpid(pid, 0)",
            "the end of python",
        ),
        (
            "import os, time\nr, w = os.pipe()\npid = os.fork()\n"
            "if not pid: os.close(r); time.sleep(60); os._exit(0)\n"
            "os.close(w); print(flush=True); os.read(r, 1)",
            "data from a pipe, whose other end python",
        ),
    ],
)
def test_other_things_are_named(start: Start, code: str, words: str) -> None:
    assert awaited(start(code), words)


def test_who_sleeps_or_is_gone_waits_for_nothing_that_has_a_name(start: Start) -> None:
    process = start("import time; print(flush=True); time.sleep(60)")
    assert wait_of(process.pid) is None
    assert wait_of(1 << 30) is None


HELD = "1: {0} ADVISORY  WRITE {1} fe:00:21 0 EOF\n"
WAITS = "1: -> {0} ADVISORY  WRITE 7 fe:00:21 0 EOF\n"


@pytest.mark.parametrize(
    ("locks", "holder"),
    [
        (HELD.format("FLOCK", 12) + WAITS.format("FLOCK"), 12),
        (HELD.format("OFDLCK", -1) + WAITS.format("OFDLCK"), 0),
        (HELD.format("FLOCK", 12), 0),
        ("", 0),
        ("nonsense", 0),
    ],
)
def test_holders_by_what_the_kernel_lists(locks: str, holder: int) -> None:
    assert lock_holder(7, locks) == holder
