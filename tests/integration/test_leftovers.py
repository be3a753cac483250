"""What workers leave running when all have succeeded, and a keeper that is stopped: real jobs."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.launcher import Launcher, until_line
from support.processes import marked

from torshrun import exit_codes

LEAVE = """
import subprocess
subprocess.Popen(["sh", "-c", {program!r}])
print("up", flush=True)
"""
UPLOAD = "while ! [ -e noticed ]; do sleep 0.05; done; echo all > uploaded"
DEAF = "trap 'echo got it' TERM; while :; do sleep 0.1; done"
OBEYS = "trap 'echo bye; exit' TERM; while :; do sleep 0.1; done"


def events(folder: Path, name: str) -> list[dict[str, object]]:
    lines = (folder / "events").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_what_workers_leave_may_end_by_itself_and_is_named(torshrun: Launcher) -> None:
    script = torshrun.script(LEAVE.format(program=UPLOAD))
    process = torshrun.start("--events", "events", script)
    assert process.stderr
    line = process.stderr.readline()
    assert "left processes running: " in line
    assert "(sh, state S)" in line
    assert "--shutdown-timeout" in line
    torshrun.make("noticed")
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert (torshrun.folder / "uploaded").read_text() == "all\n"
    (event,) = events(torshrun.folder, "processes_left")
    assert event["stage"] == "left"
    assert "(sh, state S)" in str(event["processes"])


def test_helpers_that_end_at_once_are_not_spoken_of(torshrun: Launcher) -> None:
    script = torshrun.script(LEAVE.format(program="sleep 0.1; echo helped"))
    code, out, err = torshrun.run(script)
    assert (code, out, err) == (0, "[0] up\n[0] helped\n", "")


def test_what_is_left_after_the_grace_gets_sigterm(torshrun: Launcher) -> None:
    script = torshrun.script(LEAVE.format(program=OBEYS))
    code, out, err = torshrun.run("--shutdown-timeout", "0.3", script)
    assert (code, out) == (0, "[0] up\n[0] bye\n")
    assert "SIGTERM to what workers left running, and SIGKILL 5 s later: " in err


def test_without_grace_what_is_left_is_killed_and_named(torshrun: Launcher) -> None:
    script = torshrun.script(LEAVE.format(program=DEAF))
    code, out, err = torshrun.run("--shutdown-timeout", "0", script)
    assert (code, out) == (0, "[0] up\n")
    assert "torshrun: SIGKILL to what workers left running: " in err


def test_a_stop_request_does_not_wait_for_what_is_left(torshrun: Launcher) -> None:
    process = torshrun.start(torshrun.script(LEAVE.format(program=DEAF)))
    until_line(process, "up")
    assert process.stderr
    assert "left processes running" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    until_line(process, "got it")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)  # and not 30 s
    assert process.returncode == 0
    assert "SIGTERM to what workers left running" in err


# ---- the keeper


def keeper_of(torshrun: Launcher, process: subprocess.Popen[str]) -> int:
    (keeper,) = [pid for pid, parent in marked(torshrun.mark).items() if parent == process.pid]
    return keeper


def test_a_stopped_keeper_is_resumed(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        print("up", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        """
    )
    process = torshrun.start(script)
    until_line(process, "up")
    os.kill(keeper_of(torshrun, process), signal.SIGSTOP)
    torshrun.make("go")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "was stopped, as by SIGSTOP: it is resumed" in err


@pytest.mark.parametrize(
    ("limit", "asked", "reason"),
    [("2", False, "gave no answer for "), ("0", True, "did not end the workers in 7 s")],
)
def test_a_keeper_that_cannot_answer_is_given_up(
    torshrun: Launcher, limit: str, asked: bool, reason: str
) -> None:
    script = torshrun.script("print('up', flush=True)\ntime.sleep(600)")
    process = torshrun.start("--agent-timeout", limit, "--shutdown-timeout", "0.2", script)
    until_line(process, "up")
    ptrace_attach, keeper = 16, keeper_of(torshrun, process)
    if ctypes.CDLL(None).ptrace(ptrace_attach, keeper, 0, 0):
        pytest.skip("may not trace processes")
    if asked:
        process.terminate()
    wait_all = 0x40000000
    while not os.WIFSIGNALED(os.waitpid(keeper, wait_all)[1]):
        continue  # it is held; its parent learns of its end when this process has
    _, err = process.communicate(timeout=30)
    assert process.returncode == exit_codes.LOST
    assert reason in err
    assert ", so this process killed it" in err
    assert "has died" not in err
