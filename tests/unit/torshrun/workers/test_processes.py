"""What is found out about single processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from support.processes import soon

from torshrun.workers import processes

NO_SUCH_PID = 2**22 + 1  # above the kernel's highest


def test_a_process_is_named_with_its_program_and_state() -> None:
    name = Path("/proc/self/comm").read_text().rstrip("\n")
    named = processes.named([os.getpid(), NO_SUCH_PID])
    assert named == (f"{os.getpid()} ({name}, state R)", str(NO_SUCH_PID))


def test_children_are_found() -> None:
    before = set(processes.children())
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        assert set(processes.children()) == {*before, child.pid}
        processes.kill(child.pid)
        assert processes.wait_for(child.pid, 10)
    assert set(processes.children()) == before


def ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended and nobody has waited for it."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, flags) is not None


def test_what_others_left_is_reaped_and_the_own_child_is_not() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as own, subprocess.Popen(["/bin/true"]) as orphan:
        assert soon(lambda: ended(orphan))
        processes.reap_orphans(own.pid)
        assert orphan.pid not in processes.children()
        processes.reap_orphans(own.pid)  # there is none any more
        own.kill()
        assert soon(lambda: ended(own))
        processes.reap_orphans(own.pid)
        assert own.wait(10) == -signal.SIGKILL


def test_killing_a_process_that_is_gone_is_no_error() -> None:
    processes.kill(NO_SUCH_PID)


def test_waiting_for_one_that_lives_ends() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        assert not processes.wait_for(child.pid, 0.01)
        child.kill()
