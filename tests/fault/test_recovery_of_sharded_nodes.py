"""Models that are sharded over several nodes, of which workers are lost: the same bits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from support.launcher import Launcher
from support.nodes import Job

SCRIPT = str(Path(__file__).parent.parent / "support" / "recovering.py")
MOST = "--max-restarts=9"
STEP = re.compile(r"^(?:\[\d+\] )?(step \d+ .+)$", re.MULTILINE)
END = re.compile(r"end (\d+) \d+ (\S+)")
START = re.compile(r"^(?:\[\d+\] )?start (\d+) (\d+) (\d+)", re.MULTILINE)


class Outcome(NamedTuple):
    """What the ranks of a job have printed."""

    steps: frozenset[str]
    """What was committed, by any rank in any step."""
    totals: frozenset[tuple[str, str]]
    """The sums of the parts of each rank."""
    starts: Sequence[tuple[str, str, str]]
    """Ranks, processes, and the steps at which they have joined."""


def outcome(outputs: Iterable[str]) -> Outcome:
    out = "\n".join(outputs)
    return Outcome(frozenset(STEP.findall(out)), frozenset(END.findall(out)), [*START.findall(out)])


def run(torshrun: Launcher, options: Sequence[str], *argv: str) -> tuple[Outcome, list[str]]:
    """Run the script on two nodes, which have to end well."""
    with Job.over_tcp(torshrun, "2", MOST, *options) as job:
        nodes = [job.start(SCRIPT, *argv) for _ in range(2)]
        ends = [node.end(100) for node in nodes]
    assert [code for code, _ in ends] == [0, 0], ends
    outputs = [output for _, output in ends]
    return outcome(outputs), outputs


APART = "--pid-namespace"
"""Has the workers of each agent count as those of a host of their own."""
WAYS = {
    "memory in common on each node": ("nn-fsdp", (APART, "--nproc-per-node=2"), "2301"),
    "gathered over nodes": ("nn-mixed", (APART, "--nproc-per-node=1"), "1010"),
    "memory in common on one host": ("torch-fully_shard", ("--nproc-per-node=2",), "3120"),
}


@pytest.mark.parametrize("way", WAYS)
def test_workers_of_all_nodes_go_on_with_the_same_bits(torshrun: Launcher, way: str) -> None:
    model, options, victims = WAYS[way]
    places = ["backward:2", "half:5", "vote:7", "version:9"]
    losses = [f"kill:{place}:{rank}" for place, rank in zip(places, victims, strict=True)]
    losses.insert(2, f"kill:heal:0:{victims[2]}")  # while the second one is replaced
    expected, _ = run(torshrun, options, model, "12")
    found, outputs = run(torshrun, options, model, "12", *losses)
    assert found.steps <= expected.steps, outputs  # who is lost in commit() does not print
    assert {each.split()[1] for each in found.steps} == {*map(str, range(12))}, outputs
    assert found.totals == expected.totals, outputs
    starts = [rank for rank, _, step in found.starts if step != "0"]
    assert sorted(starts) == sorted([*victims, victims[2]]), outputs
