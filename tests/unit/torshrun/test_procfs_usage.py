"""CPU time and state of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from support.processes import soon

from torshrun.procfs import cpu_seconds, read_stat, tree

Start = Callable[[str], subprocess.Popen[bytes]]


def state(pid: int) -> str:
    found = read_stat(pid)
    return found.state if found else ""


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=-1)
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_ones_own_time_is_counted() -> None:
    before = cpu_seconds(os.getpid())
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.05
    assert state(os.getpid()) == "R"


def test_a_descendants_time_is_counted_while_it_lives_and_after(start: Start) -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    process = start(
        "import subprocess, sys, threading\n"
        f"run = lambda: subprocess.run([sys.executable, '-c', {spin!r}])\n"
        "thread = threading.Thread(target=run); thread.start(); thread.join(); input()"
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    assert len(list(tree(process.pid))) == 2
    assert cpu_seconds(process.pid) >= 0.2
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert soon(lambda: len(list(tree(process.pid))) == 1)
    assert cpu_seconds(process.pid) >= 0.2


def test_a_stopped_process_shows(start: Start) -> None:
    process = start("input()")
    os.kill(process.pid, signal.SIGSTOP)
    assert soon(lambda: state(process.pid) == "T")


@pytest.mark.parametrize("pid", [0, -1, 2**30])
def test_of_no_process_there_is_nothing(pid: int) -> None:
    assert cpu_seconds(pid) == 0.0


def test_a_name_may_look_like_fields(start: Start) -> None:
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 2 (', 0, 0, 0)"
    process = start(f"{rename}; print(flush=True); input()")
    assert process.stdout is not None
    process.stdout.readline()
    assert soon(lambda: state(process.pid) == "S")
