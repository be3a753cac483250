"""A rank that becomes slow is found by the agent and told of in all ways, and so is its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.launcher import Launcher
from support.nodes import Job

from torsh_runtime.events import Event, faults
from torshrun import exit_codes

PATIENCE = 120
SCRIPT = """
import time
import numpy as np
import torsh_runtime as tr

def train(until, late):
    global step
    goes_on = np.ones(1)
    while goes_on[0]:
        step += 1
        tr.monitoring.step(step)
        with tr.monitoring.section(f"part {step % 120}"):  # names come up all the time
            pass
        with tr.monitoring.section("data"):
            time.sleep(late if rank == 1 else 0.001)
        time.sleep(0.01)
        goes_on[0] = not until()
        tr.all_reduce(goes_on, tr.ReduceOp.MAX)

def has(event):
    return lambda: event in told()

tr.init_process_group()
rank, step = tr.get_rank(), 0
train(lambda: step >= 30, 0.001)
train(has("straggler_found"), 0.05)  # no other load makes rank 0 as slow as that
train(has("straggler_gone"), 0.001)
"""
BY_EVENTS = """
from pathlib import Path
def told():
    return Path("events.jsonl").read_text()
"""
BY_CALLBACK = """
import torsh_runtime as tr
names = []
def told():
    return names
config = tr.monitoring.BottleneckDetectionConfig(
    detection_interval_ms=100,
    thresholds=tr.monitoring.BottleneckThresholds(1, 1, 1, 1),
    callback=lambda found: names.append(found.event) or 1 / 0,  # which ends nothing
)
tr.monitoring.start(config)
"""


def run(folder: Path, script: str, *options: str) -> tuple[list[Event], str]:
    """The events of such a job of two ranks, and its stderr."""
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", *options]
    done = subprocess.run(
        [*command, "--events", "events.jsonl", "train.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    events = [event for event in map(Event.from_json, lines) if event.name.startswith("stragg")]
    assert [faults(event) for event in events if faults(event)] == []
    return events, done.stderr


@pytest.mark.parametrize(
    ("told", "options"),
    [(BY_EVENTS, ("--straggler-threshold", "1.5")), (BY_CALLBACK, ())],
    ids=["option", "script"],
)
def test_who_becomes_slow_is_told_of_until_it_is_no_more(
    tmp_path: Path, told: str, options: tuple[str, ...]
) -> None:
    events, said = run(tmp_path, told + SCRIPT, *options, "--notify", "cat >> notes.jsonl")
    found, gone = events[0], events[-1]
    assert (found.name, found.facts["ranks"], found.facts["cause"]) == (
        "straggler_found",
        [1],
        "section data",
    )
    assert (gone.name, gone.facts["ranks"]) == ("straggler_gone", [1])
    assert f"torshrun: {found.facts['text']}" in said
    notes = [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text().splitlines()]
    assert [note["event"] for note in notes] == [event.name for event in events]
    assert notes[0]["text"] == found.facts["text"]
    assert ("1 / 0" in said) == (told is BY_CALLBACK)


SLOW_NODE = """
import numpy as np
import torsh_runtime as tr
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
late = 0.012 if "SLOW" in os.environ else 0.001
print("runs", flush=True)
tr.init_process_group()
step, done = 0, np.zeros(1)
while not done[0]:
    step += 1
    tr.monitoring.step(step)
    with tr.monitoring.section("data"):
        time.sleep(late)
    time.sleep(0.002)
    done[0] = os.path.exists("go")
    tr.all_reduce(done, tr.ReduceOp.MAX)
"""
REPLACES = ("--straggler-threshold=1.5", "--replace-stragglers")


@pytest.mark.parametrize("has_spare", [True, False])
def test_a_spare_takes_the_place_of_a_node_that_is_slow_for_long(
    torshrun: Launcher, has_spare: bool
) -> None:
    script = torshrun.script(SLOW_NODE)
    with Job.over_tcp(torshrun, "1:2", *REPLACES) as job:
        first = job.start(script)
        first.wait_for("this agent serves the job's store")
        late = job.start(script, within=("env", "SLOW=1"))
        late.wait_for("round 0: node 1 of 2|round 1: node 1 of 2")
        if has_spare:
            spare = job.start(script)
            spare.wait_for("waits in case one is lost")
        said = first.wait_for(r"rank 1 \(node 1\) is still slow at step.*")
        assert 'section "data" takes longer' in said
        if has_spare:
            assert "is drained: another waits to take its place" in said
            spare.wait_for("runs")
            assert late.end()[0] == exit_codes.PREEMPTED
        else:
            assert "Consider another node in its place: torshctl drain" in said
        torshrun.make("go")
        assert [node.end()[0] for node in job.nodes if node is not late] == [0] * (
            len(job.nodes) - 1
        )
