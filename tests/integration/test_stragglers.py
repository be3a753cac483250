"""A rank that becomes slow is found by the agent and told of in all ways, and so is its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torsh_runtime.events import Event, faults

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
