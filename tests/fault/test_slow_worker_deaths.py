"""Workers that take long to end: the agent acts at once, and says as much as ever."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launcher import Launcher
from support.much_memory import HOLD

WORKERS = 3
VICTIM = 1
ATTEMPTS = 5
SYS_EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]

NUMBERED_LIKE_THE_DEAD = """
import os, sys
dead = [os.fork() or os._exit(1) for _ in range(200)]
inside = f'echo {min(dead)} >/proc/sys/kernel/ns_last_pid; exec "$@"'
unshare = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", inside, "sh"]
os.execvp("unshare", [*unshare, *sys.argv[1:]])
"""
"""Runs a command in a PID namespace without a /proc of its own, so that its processes have the
numbers of others there, which have failed and are waited for by nobody."""
ROOT = os.geteuid() == 0 and shutil.which("unshare")

Events = list[dict[str, Any]]

FAILS_ONCE = f"""
{HOLD}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    held = hold() if rank == {VICTIM} else None
    open(f"ready{{rank}}", "w").close()
    while len([name for name in os.listdir() if name.startswith("ready")]) < {WORKERS}:
        time.sleep(0.01)
    if held:
        DIE
    while True:
        signal.pause()
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with Launcher(tmp_path) as made:
        yield made


def run(launcher: Launcher, script: str, *options: str) -> tuple[int, str, Events]:
    """Its exit code, what torshrun said, and its events."""
    for left in [*launcher.folder.glob("ready*"), *launcher.folder.glob("events")]:
        left.unlink()
    path = launcher.script(script)
    code, _, told = launcher.run(
        *("--events", "events", "--nproc-per-node", str(WORKERS), "--restart-backoff", "0"),
        *(*options, path),
    )
    lines = (launcher.folder / "events").read_text().splitlines()
    return code, told, [json.loads(line) for line in lines]


def position(events: Events, **facts: object) -> int:
    """Of the only event with these facts."""
    found = [n for n, event in enumerate(events) if facts.items() <= event.items()]
    assert len(found) == 1, (facts, events)
    return found[0]


@pytest.mark.parametrize(
    ("die", "code", "signo"),
    [("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"), ("os._exit(3)", 3, "")],
)
def test_the_others_are_stopped_before_the_dead_ones_memory_is_freed(
    launcher: Launcher, die: str, code: int, signo: str
) -> None:
    for _ in range(ATTEMPTS):
        script = FAILS_ONCE.replace("DIE", die)
        ended, told, events = run(launcher, script, "--max-restarts", "1")
        assert ended == 0, told
        exited = position(events, event="worker_exited", round=0, rank=VICTIM)
        stopping = position(events, event="workers_stopping", round=0)
        facts = events[exited]
        assert (facts["code"], facts["signal"], facts["stopped"]) == (code, signo, False)
        assert facts["peak_rss_bytes"] > 0
        assert sorted(events[stopping]["ranks"]) == [0, 2]
        assert position(events, event="worker_failed", rank=VICTIM, code=code) > exited
        assert position(events, event="restart_scheduled") > exited
        assert position(events, event="round_started", round=1) > exited
        if stopping < exited or not signo:
            return  # whoever exits by itself is waited for, as others may follow
    pytest.fail("the others were always stopped after the end")


def test_one_that_ends_well_is_no_failure(launcher: Launcher) -> None:
    script = f"""
    {HOLD.replace(chr(10), chr(10) + "    ")}
    held = hold() if rank == {VICTIM} else None
    if rank != {VICTIM}:
        time.sleep(0.5)
    """
    code, told, events = run(launcher, script)
    assert code == 0, told
    assert not [event for event in events if event["event"] == "workers_stopping"]


def test_one_goes_on_without_its_first_thread(launcher: Launcher) -> None:
    script = f"""
    import ctypes, threading
    def go_on():
        time.sleep(0.5)
        os._exit(0)
    threading.Thread(target=go_on).start()
    ctypes.CDLL(None).syscall({SYS_EXIT}, 7)
    """
    code, told, events = run(launcher, script)
    exits = [event["code"] for event in events if event["event"] == "worker_exited"]
    assert (code, exits) == (0, [0] * WORKERS), told


@pytest.mark.skipif(not ROOT, reason="needs root and unshare")
def test_the_dead_with_their_numbers_in_another_proc_are_others(launcher: Launcher) -> None:
    script = launcher.script("time.sleep(0.5)\nprint(os.getpid())")
    within = (sys.executable, "-c", NUMBERED_LIKE_THE_DEAD)
    process = launcher.start("--nproc-per-node", str(WORKERS), script, within=within)
    out, told = process.communicate(timeout=30)
    assert (process.returncode, len(out.splitlines())) == (0, WORKERS), told
