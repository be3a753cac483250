"""Stacks through py-spy; where it is not installed, through programs that stand in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import soon

from torshrun import own_programs
from torshrun.health import stacks
from torshrun.health.stacks import Stacks, collect
from torshrun.workers.processes import reap_orphans

TRAIN = (
    "import _thread, time\n"
    "def train(): print(flush=True); time.sleep(60)\n"
    "_thread.start_new_thread(train, ())\n"
    "train()"
)


@pytest.fixture(params=["itself", "from a script"])
def worker(request: pytest.FixtureRequest) -> Iterator[int]:
    """A Python process that stands in a function of its own, or a shell that has started it."""
    argv = [sys.executable, "-c", TRAIN]
    if request.param == "from a script":
        argv = ["sh", "-c", '"$0" "$@"; :', *argv]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to put a program that is found as py-spy."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "py-spy"


def collected(pids: list[int], timeout: float) -> Stacks:
    """What collect() finds; asyncio's threads that waited for the children have ended then."""
    found = asyncio.run(collect(pids, timeout))
    names = lambda: [thread.name for thread in threading.enumerate()]  # noqa: E731
    assert soon(lambda: not any(name.startswith("waitpid") for name in names()))
    return found


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_real_process_shows_where_it_is(worker: int) -> None:
    if not stacks.find_program():
        pytest.skip("py-spy is not installed")
    found = collected([worker], 20)
    if "SYS_PTRACE" in found.hint:
        pytest.skip(found.hint)
    # A thread that begins to sleep, on a busy machine, is still active.
    texts = {pid: text.replace("(active)", "(idle)") for pid, text in found.texts.items()}
    assert Stacks(texts, found.hint) == Stacks(
        {
            worker: "MainThread (idle)\n  train (<string>:2)\n  <module> (<string>:4)\n"
            "a thread without a name (idle)\n  train (<string>:2)"
        },
        "",
    )


def test_a_process_that_is_not_python_says_so() -> None:
    if not stacks.find_program():
        pytest.skip("py-spy is not installed")
    process = subprocess.Popen(["sleep", "60"])
    try:
        found = collected([process.pid], 20)
    finally:
        process.kill()
        process.wait()
    assert found == Stacks({process.pid: "no Python process"}, "")


def test_without_py_spy_it_says_what_to_install(py_spy: Path) -> None:
    found = collected([1, 2], 20)
    assert found.texts == {1: "", 2: ""}
    assert "pip install py-spy" in found.hint


def test_equal_places_of_different_processes_read_alike(py_spy: Path) -> None:
    threads = (
        'Thread $3 (active+gil): "Main"\n    step (b.py:7)\nThread 0x$3 (idle)\n    f (c.py:1)'
    )
    program(py_spy, f"echo 'Process '$3': a\n\nPython v3\n\n{threads}'".replace("$3", "'$3'"))
    found = collected([os.getpid(), os.getppid()], 20)
    assert set(found.texts.values()) == {
        "Main (active)\n  step (b.py:7)\na thread without a name (idle)\n  f (c.py:1)"
    }
    assert found.hint == ""


def test_a_pause_is_tried_only_if_it_fails_without(py_spy: Path) -> None:
    program(py_spy, 'echo "$@" >> "$0.log"; exit 1')
    collected([os.getpid()], 20)
    first, second = py_spy.with_name("py-spy.log").read_text().splitlines()
    assert first == f"{second} --nonblocking"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("echo 'Error: Permission Denied' >&2; exit 1", "--cap-add SYS_PTRACE"),
        ("echo 'Error: no such luck' >&2; exit 1", "py-spy failed: Error: no such luck"),
        ("exit 3", "py-spy failed: exit code 3"),
        ("kill -9 $$", "py-spy failed: exit code -9"),
        ("echo nonsense", "py-spy gave an answer that is none"),
        ("echo 'Process 1: a'", "py-spy gave an answer that is none"),
    ],
)
def test_what_went_wrong_is_said_once(py_spy: Path, text: str, hint: str) -> None:
    program(py_spy, text)
    mine = os.getpid()
    found = collected([mine], 20)
    assert found.texts == {mine: ""}
    assert hint in found.hint
    assert found.hint.count("py-spy") == 1


def test_a_file_that_cannot_be_run_is_an_account(py_spy: Path) -> None:
    py_spy.write_bytes(b"\x7fELF nonsense")
    py_spy.chmod(0o755)
    assert "py-spy cannot be run" in collected([os.getpid()], 20).hint


def test_a_late_one_is_killed(py_spy: Path) -> None:
    """And so is what still waits for its turn; the check for children says whether."""
    program(py_spy, "exec sleep 60")
    pids = [os.getpid(), os.getppid()]
    found = collected(pids, 0.2)
    assert found == Stacks(dict.fromkeys(pids, ""), "py-spy did not answer within 0.2 s")


def test_no_processes_no_stacks() -> None:
    assert collected([], 1).texts == {}


@pytest.mark.parametrize(
    ("frame", "stands"),
    [
        ("Pdb.interaction (pdb.py:433)", True),
        ("TerminalPdb.interaction (/x/lib/python3.11/pdb.py:433)", True),
        ("PyDB._do_wait_suspend (pydevd.py:2200)", True),
        ("PyDB.do_wait_suspend (/x/pydevd.py:2133)", True),
        ("PyDB.run (pydevd.py:2821)", False),  # below whatever runs in it
        ("interaction (model.py:3)", False),
    ],
)
def test_who_stands_in_a_debugger(frame: str, stands: bool) -> None:
    text = f"MainThread (idle)\n  {frame}\n  <module> (train.py:5)"
    assert stacks.is_at_breakpoint(text) is stands


def test_arguments_of_collectives_are_shown_and_no_other_variables(
    py_spy: Path, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    answer.write_text(
        """Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    recv (torch/distributed/distributed_c10d.py:2799)
        Arguments:
            tensor: <Tensor at 0x7f9f204ba5d0>
            src: 2
            group: None
            tag: 5
            group_src: None
        Locals:
            relevant_args: (<Tensor at 0x7f9f204ba5d0>)
    load (train.py:7)
        Arguments:
            src: 4
            token: "a secret"
    <module> (train.py:9)
"""
    )
    program(py_spy, f"cat {answer}")
    text = collected([os.getpid()], 20).texts[os.getpid()]
    assert text.splitlines() == [
        "MainThread (idle)",
        "  recv (torch/distributed/distributed_c10d.py:2799) [src=2, tag=5]",
        "  load (train.py:7)",
        "  <module> (train.py:9)",
    ]


def test_programs_of_two_questions_are_not_reaped_as_orphans(
    py_spy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program(py_spy, "sleep 0.3")

    async def ask_twice() -> None:
        first = asyncio.create_task(collect([os.getpid()], 5))
        second = asyncio.create_task(collect([os.getpid()], 0.1))  # is over before the first
        while not first.done() or not second.done():
            await asyncio.sleep(0.005)
            if not own_programs.run():  # as the agent does about once a second
                reap_orphans()

    asyncio.run(ask_twice())
    assert not own_programs.run()
    assert "child process" not in caplog.text


def test_a_question_that_is_given_up_twice_leaves_its_program_to_asyncio(py_spy: Path) -> None:
    program(py_spy, "trap '' TERM; sleep 0.3")

    async def give_up() -> None:
        asking = asyncio.create_task(collect([os.getpid()], 5))
        await asyncio.sleep(0.1)
        assert own_programs.run()
        asking.cancel()
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        deadline = asyncio.get_running_loop().time() + 10
        while own_programs.run():
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)

    asyncio.run(give_up())
