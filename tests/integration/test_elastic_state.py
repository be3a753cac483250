"""Trainings that go on from their last commit when workers are killed."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from support import elastic_training
from support.launcher import Launcher
from support.nodes import QUICK, Job

SCRIPT = str(Path(elastic_training.__file__))


def results(out: str) -> tuple[list[int], dict[tuple[int, int], set[tuple[int, ...]]], float]:
    """Where each round of workers began, what was taken in each step of each epoch, the end."""
    starts = [int(step) for step in re.findall(r"start (\d+)", out)]
    taken: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for step, epoch, indices in re.findall(r"step (\d+) (\d+) ([\d ]+)", out):
        taken.setdefault((int(step), int(epoch)), set()).add(tuple(map(int, indices.split())))
    ends = {float(total) for total in re.findall(r"end \d+ ([\d.]+)", out)}
    return starts, taken, max(ends)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_killed_workers_lose_no_committed_step(torshrun: Launcher, way: str) -> None:
    launch = ("--nproc-per-node", "4", "--max-restarts", "2", "--restart-backoff", "0")
    code, out, err = torshrun.run(*launch, SCRIPT, way, "3", "7")
    assert code == 0, err
    starts, taken, end = results(out)
    assert starts == [0] * 4 + [3] * 4 + [7] * 4
    assert sorted(step for step, _ in taken) == list(range(1, 16))
    for epoch in range(elastic_training.EPOCHS):
        parts = [part for (_, at), own in taken.items() if at == epoch for part in own]
        assert sorted(n for part in parts for n in part) == list(range(elastic_training.SAMPLES))
    code, out, err = torshrun.run(*launch, SCRIPT, way)
    assert code == 0, err
    _, undisturbed, expected = results(out)
    assert taken == undisturbed
    np.testing.assert_allclose(end, expected, rtol=1e-12)


USES_DESCRIPTORS = 'exec 3>/dev/null 4<&- 5>&1; echo of the script >&5; exec "$@" 3>&1'


@pytest.mark.parametrize("within", ["a script that uses descriptors", "a namespace"])
def test_commits_need_no_descriptor_of_the_programs(torshrun: Launcher, within: str) -> None:
    torshrun.environ["EPOCHS"] = "1"
    launch = ["--nproc-per-node=2", "--max-restarts=1", "--restart-backoff=0"]
    if within == "a namespace":
        launch += ["--pid-namespace", SCRIPT]
    else:
        launch += ["--no-python", "bash", "-c", USES_DESCRIPTORS, "bash", sys.executable, SCRIPT]
    code, out, err = torshrun.run(*launch, "ddp", "3")
    assert code == 0, err
    assert results(out)[0] == [0, 0, 3, 3]


def test_workers_inherit_only_their_standard_streams(torshrun: Launcher) -> None:
    told = torshrun.run("--no-python", "--nproc-per-node=1", "ls", "/proc/self/fd")
    assert [line.split()[-1] for line in told[1].splitlines()] == ["0", "1", "2", "3"]  # ls's own


def test_nodes_may_be_killed_and_others_come(torshrun: Launcher) -> None:
    torshrun.environ |= {"EPOCHS": "12", "PAUSE": "0.25"}
    with Job.over_tcp(torshrun, "1:4", conf=f"{QUICK},last_call_timeout=3") as job:
        nodes = [job.start(SCRIPT, "ddp")]
        nodes[0].wait_for("this agent serves the job's store")
        nodes += [job.start(SCRIPT, "ddp") for _ in range(3)]
        began = nodes[0].wait_for(r"start \d+ of 4", 60)
        first = int(began.split()[1])
        nodes[0].wait_for(f"step {first + 8} ")
        for node in nodes[2:]:
            node.send(signal.SIGKILL)
        started = nodes[0].wait_for(r"start \d+ of 2", 60)
        assert int(started.split()[1]) >= first + 7
        first = int(started.split()[1])
        nodes[0].wait_for(f"step {first + 5} ")
        nodes.append(job.start(SCRIPT, "ddp"))
        nodes[4].wait_for(r"start \d+ of 3", 60)
        ends = [nodes[number].end(60) for number in (0, 1, 4)]
        assert [code for code, _ in ends] == [0, 0, 0], ends
        out = "".join(node.output for node in nodes)
    _, taken, _ = results(out)
    assert_each_once(taken, 12)
    ends_ = set(re.findall(r"end 60 ([\d.]+)", out))
    assert len(ends_) == 1
    code, out, err = torshrun.run("--nproc-per-node", "3", SCRIPT, "ddp")
    assert code == 0, err
    (expected,) = set(re.findall(r"end 60 ([\d.]+)", out))
    np.testing.assert_allclose(float(ends_.pop()), float(expected), rtol=1e-4)


@pytest.mark.parametrize("way", ["fsdp", "zero"])
def test_a_node_that_had_shards_may_be_killed(torshrun: Launcher, tmp_path: Path, way: str) -> None:
    torshrun.environ |= {"EPOCHS": "9", "GATES": str(tmp_path)}
    gates = [tmp_path / str(step) for step in (20, 30, 40)]
    for gate in gates:
        gate.touch()
    with Job.over_tcp(torshrun, "1:2", conf=f"{QUICK},last_call_timeout=15") as job:
        first = job.start("--nproc-per-node=2", SCRIPT, way)
        first.wait_for("this agent serves the job's store")
        lost = job.start("--nproc-per-node=1", SCRIPT, way)
        first.wait_for("start 0 of 3", 60)
        first.wait_for("kept 20\n", 60)
        lost.send(signal.SIGKILL)
        first.wait_for("start 20 of 2", 60)
        gates[0].unlink()
        first.wait_for("kept 30\n", 60)
        other = job.start("--nproc-per-node=1", SCRIPT, way)
        other.wait_for("start 30 of 3", 60)
        gates[1].unlink()
        first.wait_for("kept 40\n", 60)
        other.send(signal.SIGKILL)
        first.wait_for("start 40 of 2", 60)
        gates[2].unlink()
        code, out = first.end(60)
    assert code == 0, out
    ends = [float(total) for total in re.findall(r"end 45 ([\d.]+)", out)]
    end = sum(ends) if way == "fsdp" else sum(ends) / 2  # of shards, or of all on each of two
    code, out, err = torshrun.run("--nproc-per-node", "2", SCRIPT, "ddp")
    assert code == 0, err
    (expected,) = set(re.findall(r"end 45 ([\d.]+)", out))
    np.testing.assert_allclose(end, float(expected), rtol=1e-4)


def assert_each_once(taken: dict[tuple[int, int], set[tuple[int, ...]]], epochs: int) -> None:
    """What ranks have taken, of which those that were killed may have told twice or not at all."""
    for epoch in range(epochs):
        steps = [own for (_, at), own in taken.items() if at == epoch]
        assert len(steps) == elastic_training.SAMPLES // elastic_training.BATCH
        batches = [sorted({n for part in own for n in part}) for own in steps]
        assert all(len(batch) <= elastic_training.BATCH for batch in batches)
        assert len({n for batch in batches for n in batch}) == sum(map(len, batches))


def test_without_an_agent_nothing_is_kept() -> None:
    import torsh_runtime as tr

    state = tr.elastic.State(step=1, values={"a": 2})
    state.step += 1
    state.commit()
    assert not state.restore()
    assert state.step == 2
    with pytest.raises(AttributeError, match="no part 'epoch'"):
        state.epoch = 1
    with pytest.raises(AttributeError, match="no part 'epoch'"):
        _ = state.epoch


def test_a_state_without_commits_takes_the_checkpoint(tmp_path: Path) -> None:
    import torsh_runtime as tr

    checkpointer = tr.checkpoint.Checkpointer(tmp_path)
    checkpointer.save(4, {"step": 4, "array": np.arange(3)})
    state = tr.elastic.State(step=0, array=None, checkpointer=checkpointer)
    calls: list[int] = []
    state.register_reset_callbacks([lambda: calls.append(state.step)])
    assert state.restore()
    np.testing.assert_array_equal(state.array, np.arange(3))
    assert calls == [4]
