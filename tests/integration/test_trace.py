"""torshctl trace of real jobs: while they run, and of what they have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import marked, soon
from support.traces import Event, read_trace_file, slices

PATIENCE = 60
SCRIPT = """
import os, signal, sys, time
import numpy as np
import torsh_runtime as tr
tr.init_process_group()
rank, array = tr.get_rank(), np.ones(1000, np.float32)
def step(number):
    tr.monitoring.step(number, loss=1 / (1 + number))
    with tr.monitoring.section("data"):
        time.sleep(0.004)
    with tr.monitoring.section("compute"):
        for _ in range(5):
            tr.all_reduce(array)
"""


class Job:
    """Runs a script as two ranks in a directory of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = os.urandom(8).hex()
        self.environ = {**os.environ, "MARK": self.mark}
        self.process: subprocess.Popen[str] | None = None

    def start(self, script: str, *options: str) -> int:
        """The pid of its torshrun, once all ranks have made a step."""
        (self.folder / "train.py").write_text(SCRIPT + textwrap.dedent(script))
        command = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", "--log-dir", "logs"]
        with (self.folder / "out").open("w") as out:
            self.process = subprocess.Popen(
                [*command, *options, "train.py"],
                cwd=self.folder,
                env=self.environ,
                stdout=out,
                stderr=out,
                text=True,
            )
        return self.process.pid

    def run(self, script: str, *options: str) -> str:
        """What it says."""
        self.start(script, *options)
        assert self.process is not None
        self.process.wait(PATIENCE)
        return (self.folder / "out").read_text()

    def trace(self, *arguments: str | int, start_only: bool = False) -> Any:
        command = [sys.executable, "-m", "torshrun.ctl", "trace", *map(str, arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder
        )
        if start_only:
            assert process.stderr is not None
            assert "Ctrl-C ends it" in process.stderr.readline()
            return process
        _, err = process.communicate(timeout=PATIENCE)
        return process.returncode, err

    def read(self, name: str = "trace.json.gz") -> list[Event]:
        """The events of the trace, which is checked."""
        return read_trace_file(self.folder / name)[0]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    if made.process and made.process.poll() is None:
        made.process.terminate()
        made.process.wait(PATIENCE)
    assert soon(lambda: not marked(made.mark)), marked(made.mark)


def of_rank(events: list[Event], rank: int) -> list[Event]:
    return [event for event in events if event["pid"] == rank + 1]


ENDLESS = """
number = 0
open(f"pid{rank}", "w").write(str(os.getpid()))
while True:
    while os.path.exists("hold"):
        time.sleep(0.01)
    step(number)
    open(f"new{rank}", "w").write(str(number))
    os.replace(f"new{rank}", f"step{rank}")
    number += 1
"""


def test_a_running_job(job: Job) -> None:
    pid = job.start(ENDLESS)
    assert soon(lambda: all((job.folder / f"step{rank}").exists() for rank in (0, 1)))

    code, err = job.trace(pid, "--seconds", "0.5")
    assert code == 0, err
    assert "operations of ranks 0-1 in 0." in err
    events = job.read()
    for rank in (0, 1):
        own = of_rank(events, rank)
        shown = slices(own, "main thread")
        steps = [name for name, *_ in shown if name.startswith("step")]
        numbers = [int(name.split()[1]) for name in steps]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers
        assert not slices(own, "not recorded")
        sequences = [e["args"]["number"] for e in own if e["name"] == "all_reduce (move)"]
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        assert {e["name"] for e in own if e["ph"] == "C"} == {"loss", "bytes/s"}
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"rank {rank} (node {os.uname().nodename})" for rank in (0, 1)}

    (job.folder / "hold").touch()
    first = int((job.folder / "step0").read_text()) + 10  # a step may be under way
    wanted = "--steps", f"{first}:{first + 5}", "-o", "steps.json"
    tracing = job.trace(pid, *wanted, start_only=True)
    (job.folder / "hold").unlink()
    _, err = tracing.communicate(timeout=PATIENCE)
    assert tracing.returncode == 0, err
    for rank in (0, 1):
        shown = slices(of_rank(job.read("steps.json"), rank), "main thread")
        steps = [name for name, *_ in shown if name.startswith("step")]
        assert steps == [f"step {number}" for number in range(first, first + 6)]
        assert len([name for name, *_ in shown if name == "all_reduce (wait)"]) == 30

    code, err = job.trace(pid, "--steps", "1:2", "-o", "none.json")
    assert (code, "step 2 has gone by: the ranks are at step" in err) == (1, True)
    code, err = job.trace(pid, "--steps", "10000000", "--seconds", "0.3", "-o", "none.json")
    assert (code, "has not come within 0.3 s" in err) == (1, True)
    assert not (job.folder / "none.json").exists()


def test_what_there_is_is_written_at_an_interrupt_and_when_workers_die(job: Job) -> None:
    pid = job.start(ENDLESS)
    assert soon(lambda: all((job.folder / f"step{rank}").exists() for rank in (0, 1)))
    tracing = job.trace(pid, "--seconds", "600", "-o", "stopped.json", start_only=True)
    time.sleep(0.2)  # some steps
    tracing.send_signal(signal.SIGINT)
    _, err = tracing.communicate(timeout=PATIENCE)
    assert (tracing.returncode, "interrupted" in err) == (0, True)
    assert of_rank(job.read("stopped.json"), 1)

    tracing = job.trace(pid, "--seconds", "600", "-o", "died.json", start_only=True)
    time.sleep(0.2)  # some steps
    os.kill(int((job.folder / "pid1").read_text()), signal.SIGKILL)
    _, err = tracing.communicate(timeout=PATIENCE)
    assert tracing.returncode == 0, err
    assert of_rank(job.read("died.json"), 1)

    assert job.process is not None
    job.process.wait(PATIENCE)
    assert job.trace("logs", "--seconds", "0.2", "-o", "left.json")[0] == 0
    assert "running" in str([e for e in of_rank(job.read("left.json"), 1) if e["ph"] == "E"])
    assert sorted(path.suffix for path in job.folder.glob("*.json*")) == [".json"] * 3


def test_attempts_are_on_one_line_of_time_with_the_events_of_the_job(job: Job) -> None:
    out = job.run(
        """
        for number in range(5):
            step(number)
        if rank == 1 or os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            raise SystemExit(3)
        tr.barrier()
        """,
        *("--max-restarts", "1", "--events", "events.jsonl"),
    )
    assert "attempt 2 of 2" in out
    code, err = job.trace("logs", "--with", "events.jsonl")
    assert code == 0, err
    events = job.read()
    steps = [name for name, *_ in slices(of_rank(events, 1)) if name.startswith("step")]
    assert steps == [f"step {number}" for number in range(5)] * 2
    told = {event["name"].partition(":")[0] for event in events if event["ph"] == "i"}
    assert {"attempt 0 had ended", "restart scheduled", "round started", "root cause"} <= told


def test_a_restart_is_followed(job: Job) -> None:
    pid = job.start(
        """
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        while True:
            step(int(attempt) * 1000)
            open(f"ready{attempt}{rank}", "w").close()
            if attempt == "0" and rank == 1 and os.path.exists("die"):
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        *("--max-restarts", "1"),
    )
    assert soon(lambda: (job.folder / "ready00").exists())
    tracing = job.trace(pid, "--seconds", "600", start_only=True)
    time.sleep(0.2)  # some steps
    (job.folder / "die").touch()
    assert soon(lambda: (job.folder / "ready11").exists())
    assert "following attempt 1" in tracing.stderr.readline()
    tracing.send_signal(signal.SIGINT)
    _, err = tracing.communicate(timeout=PATIENCE)
    assert tracing.returncode == 0, err
    events = job.read()
    for rank in (0, 1):
        shown = slices(of_rank(events, rank), "main thread")
        assert {"step 0", "step 1000"} <= {name for name, *_ in shown}
    assert "attempt 0 had ended" in {event["name"] for event in events if event["ph"] == "i"}


def test_ranks_without_a_recorder_are_named(job: Job) -> None:
    out = job.run(
        """
        if rank == 1:
            raise SystemExit(3)
        step(0)
        """
    )
    assert "exit code 3" in out
    job.environ["TORSH_RECORDER"] = "off"
    (job.folder / "logs").rename(job.folder / "before")
    pid = job.start("time.sleep(600)")
    assert soon(lambda: len(marked(job.mark)) >= 3)
    code, err = job.trace(pid, "--seconds", "0.2")
    assert code == 1
    assert "ranks 0-1 have recorded nothing: TORSH_RECORDER=off" in err
    for place, why in (("none/x.json", "No such file or directory"), (".", "Is a directory")):
        code, err = job.trace(pid, "-o", place)
        assert err == f"torshctl: {place} cannot be written: {why}; name another file\n"
    assert job.trace(pid, "--seconds", "0")[0] == 2
    assert job.trace("logs")[0] == 1
    assert job.trace("train.py") == (
        1,
        "torshctl: train.py is neither a directory of a job nor a trace of one node\n",
    )
    assert job.trace("before", "--steps", "2:1")[0] == 2
    assert job.trace("before", "--steps", "7") == (
        1,
        "torshctl: nothing is recorded for the steps 7:7\n",
    )
    code, err = job.trace("before", "-o", "/dev/full")
    assert (code, "/dev/full cannot be written: No space left on device" in err) == (1, True)


@pytest.mark.torch
def test_profiles_of_torch_are_on_the_same_clock(job: Job) -> None:
    pytest.importorskip("torch")
    job.run(
        """
        import torch.profiler
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with torch.profiler.record_function("marked"):
                for _ in range(10):
                    torch.ones(100) @ torch.ones(100)
                    step(0)
        if rank == 1:
            profile.export_chrome_trace("profile.json.gz")
        tr.barrier()
        raise SystemExit(3)
        """
    )
    code, err = job.trace("logs", "--with", "profile.json.gz")
    assert (code, "give it, as in --with 3=profile.json.gz" in err) == (1, True)
    code, err = job.trace("logs", "--with", "7=profile.json.gz")
    assert (code, "belongs to rank 7, which has no records" in err) == (1, True)
    code, err = job.trace("logs", "--with", "1=profile.json.gz")
    assert code == 0, err
    own = of_rank(job.read(), 1)
    (begin, end) = next((begin, end) for name, begin, end in slices(own) if name == "marked")
    steps = [(a, b) for name, a, b in slices(own, "main thread") if name == "data"]
    assert len(steps) == 10
    assert all(begin < a < b < end for a, b in steps)
    assert any(name == "aten::dot" for name, *_ in slices(own))
