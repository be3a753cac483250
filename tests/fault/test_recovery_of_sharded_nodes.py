"""Models that are sharded over several nodes, of which workers are lost: the same bits."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support.etcd_servers import EtcdCluster
from support.launcher import Launcher
from support.nodes import QUICK, Job
from support.trainings import alone

SCRIPT = str(Path(__file__).parent.parent / "support" / "recovering.py")
MOST = "--max-restarts=9"
STEP = re.compile(r"^(?:\[\d+\] )?(step \d+ .+)$", re.MULTILINE)
END = re.compile(r"end (\d+) \d+ (\S+)")
START = re.compile(r"^(?:\[\d+\] )?start (\d+) (\d+) (\d+)", re.MULTILINE)


@pytest.fixture(autouse=True)
def _cache_of_torch(torshrun: Launcher) -> None:
    """Put what torch compiles elsewhere than in a folder that has to be left empty."""
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")


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


def run(
    torshrun: Launcher, options: Sequence[str], *argv: str, nodes: int = 2
) -> tuple[Outcome, list[str]]:
    """Run the script on several nodes, which have to end well. Where these share a host and lose
    nobody, their ranks are forked here.
    """
    model, steps, *losses = argv
    if not losses and APART not in options:
        (number,) = options
        ranks = nodes * int(number.partition("=")[2])
        outputs = alone(torshrun.folder, ranks, model, int(steps))
        return outcome(outputs), outputs
    with Job.over_tcp(torshrun, str(nodes), MOST, *options) as job:
        started = [job.start(SCRIPT, *argv) for _ in range(nodes)]
        ends = [node.end(300) for node in started]
    assert [code for code, _ in ends] == [0] * nodes, ends
    outputs = [output for _, output in ends]
    return outcome(outputs), outputs


APART = "--pid-namespace"
"""Has the workers of each agent count as those of a host of their own."""
WAYS = {
    "memory in common on each node": ("nn-fsdp", (APART, "--nproc-per-node=2"), "2301"),
    "in hybrid": ("nn-hybrid", (APART, "--nproc-per-node=2"), "0312"),
    "gathered over nodes": ("nn-mixed", (APART, "--nproc-per-node=1"), "1010"),
    "memory in common on one host": ("torch-fully_shard", ("--nproc-per-node=2",), "3120"),
}


@pytest.mark.parametrize("way", WAYS)
def test_workers_of_all_nodes_go_on_with_the_same_bits(torshrun: Launcher, way: str) -> None:
    model, options, victims = WAYS[way]
    if model.startswith("torch"):
        torshrun.share_torch()
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


def test_groups_of_a_number_of_ranks_are_made_anew(torshrun: Launcher) -> None:
    options = (APART, "--nproc-per-node=1")
    expected, _ = run(torshrun, options, "nn-pairs", "8", nodes=4)
    losses = ("kill:forward:2:1", "kill:backward:4:0,3", "kill:backward:6:2")
    found, outputs = run(torshrun, options, "nn-pairs", "8", *losses, nodes=4)
    assert found.steps <= expected.steps, outputs
    assert found.totals == expected.totals, outputs
    assert sorted(step for *_, step in found.starts if step != "0") == [*"2446"], outputs


NEW = {
    "a spare, memory in common": ("nn-fsdp", (APART, "--nproc-per-node=2"), True),
    "a spare, in hybrid": ("nn-hybrid", (APART, "--nproc-per-node=2"), True),
    "a new one, gathered over nodes": ("nn-mixed", (APART, "--nproc-per-node=1"), False),
    "a new one, of torch's model": ("torch-fully_shard", ("--nproc-per-node=2",), False),
}


@pytest.mark.parametrize("case", NEW)
def test_a_new_node_has_the_shards_of_a_lost_one_while_the_others_go_on(
    torshrun: Launcher, case: str
) -> None:
    model, options, is_spare = NEW[case]
    if model.startswith("torch"):
        torshrun.share_torch()
    expected, _ = run(torshrun, options, model, "40")
    torshrun.environ |= {"PAUSE": "0.1"}
    with Job.over_tcp(torshrun, "2", MOST, *options) as job:
        for _ in range(2):
            job.start(SCRIPT, model, "40").wait_for("waiting|round")
        job.nodes[1].wait_for("step 9 ")
        if is_spare:
            job.start(SCRIPT, model, "40").wait_for("maximum")
        time.sleep(Random().random() / 5)
        job.nodes[1].send(signal.SIGKILL)
        if not is_spare:
            job.nodes[0].wait_for("the job waits for at least 2")
            job.start(SCRIPT, model, "40")
        ends = [job.nodes[number].end(200) for number in (0, 2)]
        job.nodes[1].close()
        outputs = [each.output for each in job.nodes]
    assert [code for code, _ in ends] == [0, 0], outputs
    found, each = outcome(outputs), len(expected.totals) // 2
    assert found.steps <= expected.steps, outputs
    assert found.totals == expected.totals, outputs
    again = [(rank, int(step)) for rank, _, step in found.starts if step != "0"]
    newest = max(int(told.split()[1]) for told in STEP.findall(outputs[1]))
    assert sorted(rank for rank, _ in again) == [str(each + n) for n in range(each)], outputs
    assert all(step > newest for _, step in again), outputs


@pytest.mark.etcd
def test_the_first_node_may_be_lost_if_all_meet_in_etcd(
    torshrun: Launcher, etcd: EtcdCluster
) -> None:
    options = ("--nproc-per-node=2",)
    expected, _ = run(torshrun, options, "nn-fsdp", "40", nodes=3)
    torshrun.environ |= {"PAUSE": "0.1"}
    meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint={','.join(etcd.endpoints)}")
    with Job(torshrun, "--nnodes=3", *meet, f"--rdzv-conf={QUICK}", MOST, *options) as job:
        for _ in range(3):
            job.start(SCRIPT, "nn-fsdp", "40").wait_for("waiting|round")
        job.nodes[0].wait_for("step 5 ")
        first = re.search("round 0: node 0 ", job.nodes[0].output) is not None
        job.start(SCRIPT, "nn-fsdp", "40")
        job.nodes[0].send(signal.SIGKILL)
        ends = [job.nodes[number].end(200) for number in (1, 2, 3)]
        job.nodes[0].close()
        outputs = [each.output for each in job.nodes]
    assert [code for code, _ in ends] == [0, 0, 0], outputs
    found = outcome(outputs)
    assert first, outputs
    assert found.steps <= expected.steps, outputs
    assert found.totals == expected.totals, outputs
    assert sorted(rank for rank, _, step in found.starts if step != "0") == ["4", "5"], outputs


def test_when_all_workers_are_lost_they_resume_from_memory(torshrun: Launcher) -> None:
    launch = ("--nproc-per-node=3", "--max-restarts=2", SCRIPT, "nn-fsdp", "12")
    code, out, err = torshrun.run(*launch)
    assert code == 0, err
    expected = outcome([out])
    code, out, err = torshrun.run(*launch, "kill:half:5:0,1,2", "kill:before:9:0,1,2")
    assert code == 0, err
    found = outcome([out])
    assert found.totals == expected.totals, out
    assert found.steps <= expected.steps
    starts = [step for _, _, step in found.starts]
    assert starts == ["0"] * 3 + [starts[3]] * 3 + ["9"] * 3, out
    assert starts[3] in ("5", "6"), out
