"""Root causes of real jobs: whom real workers blame, on one node and on two."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from support.launcher import Launcher
from support.nodes import Job, Node

HEAD = """
import numpy as np
import torsh_runtime as tr
x = np.ones(10, np.float32)
"""
STEPS = HEAD + "tr.init_process_group(timeout=4)\ntr.all_reduce(x)\n"


def events(path: Path, name: str = "root_cause") -> list[dict[str, Any]]:
    found = map(json.loads, path.read_text().splitlines())
    return [event for event in found if event["event"] == name]


def run(torshrun: Launcher, script: str, *options: str) -> tuple[str, dict[str, Any]]:
    """Stderr of a job on one node, and the root cause that it found."""
    path = torshrun.folder / "events"
    code, _, err = torshrun.run("--events", str(path), *options, torshrun.script(script))
    assert code != 0
    (cause,) = events(path)
    assert f"torshrun: {cause['summary']}" in err
    assert all(f"  {line}" in err or cause["certainty"] == "certain" for line in cause["evidence"])
    return err, cause


def verdict(cause: dict[str, Any]) -> tuple[list[int], str, str]:
    return cause["ranks"], cause["certainty"], cause["kind"]


def test_who_does_not_come_is_named_with_where_it_stood(torshrun: Launcher) -> None:
    script = STEPS + "def load():\n    time.sleep(60)\nload() if rank == 1 else tr.barrier()\n"
    err, cause = run(torshrun, script, "--nproc-per-node=3")
    assert verdict(cause) == ([1], "likely", "missing")
    assert "rank 1: in no collective, at load (train.py:" in err
    assert "): time.sleep(60)" in err
    assert "ranks 0, 2 waited in barrier for rank 1, which did not come." in err


def test_a_rank_of_a_sub_group_is_named_as_the_job_counts(torshrun: Launcher) -> None:
    script = (
        STEPS
        + """
group = tr.new_group([1, 2])
if rank == 2: os._exit(0)
tr.all_reduce(x, group=group) if rank == 1 else time.sleep(60)
"""
    )
    _, cause = run(torshrun, script, "--nproc-per-node=3")
    assert verdict(cause) == ([2], "likely", "early exit")


def test_who_ends_well_too_early_is_named_and_no_innocent_rank(torshrun: Launcher) -> None:
    err, cause = run(
        torshrun, STEPS + "if rank == 1: sys.exit()\ntr.barrier()", "--nproc-per-node=3"
    )
    assert verdict(cause) == ([1], "likely", "early exit")
    assert "rank 1 ended too early: with exit code 0, while ranks 0, 2 still needed it" in err


def test_two_that_disagree_are_undecided_and_of_three_the_odd_one_is_likely(
    torshrun: Launcher,
) -> None:
    script = STEPS + "tr.all_reduce(np.ones(10 + rank // 1 * (rank == 1), np.float32))"
    err, cause = run(torshrun, script, "--nproc-per-node=2")
    assert verdict(cause) == ([0, 1], "undecided", "mismatch")
    assert "torshrun: undecided between rank 0 and rank 1: mismatch" in err
    assert "rank 0 called all_reduce(float32[10], SUM), rank 1 called all_reduce(float32[11]" in err
    (torshrun.folder / "events").unlink()
    _, cause = run(torshrun, script, "--nproc-per-node=3")
    assert verdict(cause) == ([1], "likely", "mismatch")


def test_an_exception_counts_although_its_rank_ends_last(torshrun: Launcher) -> None:
    script = (
        "import atexit\n"
        + STEPS
        + """
if rank == 1:
    atexit.register(time.sleep, 60)
    raise ValueError("no tokens")
try:
    tr.barrier()
except tr.CommError as error:
    raise RuntimeError("training failed") from error
"""
    )
    err, cause = run(torshrun, script, "--nproc-per-node=2")
    assert verdict(cause) == ([1], "certain", "exception")
    assert "| ValueError: no tokens" in err


def test_what_a_rank_does_while_it_cleans_up_is_not_the_cause(torshrun: Launcher) -> None:
    script = (
        STEPS
        + """
try:
    if rank == 1: raise ValueError("bad batch")
    tr.barrier()
finally:
    if rank == 1: tr.barrier()
    tr.all_reduce(x)
"""
    )
    _, cause = run(torshrun, script, "--nproc-per-node=2")
    assert cause["ranks"] == [1]


def test_who_only_said_that_it_could_not_make_a_file_is_named(torshrun: Launcher) -> None:
    script = (
        STEPS
        + """
if rank == 0:
    print("could not write vocab.json: keys must be str", file=sys.stderr)
tr.barrier()
if rank: open("vocab.json")
tr.barrier()
"""
    )
    err, cause = run(torshrun, script, "--nproc-per-node=3")
    assert verdict(cause) == ([0], "likely", "file missing")
    assert "continued (could not write vocab.json: keys must be str)" in err


def test_a_stopped_process_is_named(torshrun: Launcher) -> None:
    script = STEPS + "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\ntr.barrier()"
    err, cause = run(torshrun, script, "--nproc-per-node=2")
    assert verdict(cause) == ([0], "certain", "stopped")
    assert "kill -CONT" in err


def test_a_thread_that_died_is_why_a_rank_does_not_come(torshrun: Launcher) -> None:
    script = (
        STEPS
        + """
import threading
def prepare():
    raise ValueError("sample 5 has no pixels")
if rank == 1:
    threading.Thread(target=prepare).start()
    time.sleep(60)
tr.barrier()
"""
    )
    err, cause = run(torshrun, script, "--nproc-per-node=2")
    assert verdict(cause) == ([1], "likely", "exception")
    assert "A thread of rank 1 had ended with an exception (ValueError: sample 5" in err


def test_each_round_has_its_root_cause(torshrun: Launcher) -> None:
    script = (
        STEPS
        + """
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if rank == (0 if first else 1): sys.exit(3)
tr.barrier()
"""
    )
    path = torshrun.folder / "events"
    options = ("--nproc-per-node=2", "--max-restarts=1", "--events", str(path))
    code, _, _ = torshrun.run(*options, torshrun.script(script))
    assert code == 79
    assert [(each["round"], each["ranks"]) for each in events(path)] == [(0, [0]), (1, [1])]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("sys.exit()", ([1], "likely", "early exit")),
        ("time.sleep(60)", ([1], "likely", "missing")),
        ("raise ValueError('bad')", ([1], "certain", "exception")),
    ],
)
def test_torchs_own_groups_name_nobody_but_torshrun_does(
    torshrun: Launcher, ending: str, expected: tuple[list[int], str, str]
) -> None:
    pytest.importorskip("torch")
    script = f"""
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=4))
x = torch.ones(10)
dist.all_reduce(x)
if rank == 1: {ending}
dist.all_reduce(x)
"""
    path = torshrun.folder / "events"
    torshrun.share_torch()
    process = torshrun.start("--nproc-per-node=3", "--events", str(path), torshrun.script(script))
    process.communicate(timeout=120)
    (cause,) = events(path)
    assert verdict(cause) == expected


# ---- several nodes


def two_nodes(torshrun: Launcher, script: str, *options: str) -> tuple[list[Node], list[Path]]:
    """Both nodes of a job, which have ended, and their events."""
    paths = [torshrun.folder / f"events.{number}" for number in range(2)]
    with Job.over_tcp(torshrun, "2", "--nproc-per-node=2", *options) as job:
        nodes = [job.start("--events", str(path), script) for path in paths]
        for node in nodes:
            node.end(60)
    return nodes, paths


def test_both_nodes_know_the_root_cause_on_one_of_them(torshrun: Launcher) -> None:
    script = torshrun.script(STEPS + "if rank == 3: raise ValueError('bad')\ntr.barrier()")
    nodes, paths = two_nodes(torshrun, script)
    for node, path in zip(nodes, paths, strict=True):
        (cause,) = events(path)
        assert verdict(cause) == ([3], "certain", "exception")
        assert f"torshrun: {cause['summary']}\n" in node.output
        assert not re.search(r"rank [0-2] failed first: ", node.output)
    # Node 0 may hear of it before its own workers have failed.
    own = r"rank [0-3] failed first on this node: exit code 1"
    assert any(re.search(own, node.output) for node in nodes)


def test_who_waits_on_one_node_points_at_who_stands_elsewhere_on_the_other(
    torshrun: Launcher,
) -> None:
    away = "def load():\n    time.sleep(60)\nload() if rank == 2 else tr.barrier()\n"
    script = torshrun.script(STEPS + away)
    nodes, paths = two_nodes(torshrun, script)
    for path in paths:
        (cause,) = events(path)
        assert verdict(cause) == ([2], "likely", "missing")
        assert any("at load (train.py:" in line for line in cause["evidence"])
    assert all("which did not come" in node.output for node in nodes)


def test_rounds_that_are_followed_by_others_have_one_too(torshrun: Launcher) -> None:
    script = torshrun.script(
        STEPS
        + """
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if rank == (3 if first else 0): sys.exit(5)
tr.barrier()
"""
    )
    _, paths = two_nodes(torshrun, script, "--max-restarts=1", "--restart-backoff=0")
    for path in paths:
        assert [(each["round"], each["ranks"]) for each in events(path)] == [(0, [3]), (1, [0])]


def test_a_node_whose_agent_was_killed_is_the_cause(torshrun: Launcher) -> None:
    script = torshrun.script(STEPS + "print('up', flush=True)\nwhile True: tr.barrier()\n")
    path = torshrun.folder / "events"
    with Job.over_tcp(torshrun, "2", "--nproc-per-node=1") as job:
        first = job.start("--events", str(path), script)
        first.wait_for("serves the job's store")
        second = job.start(script)
        for node in (first, second):
            node.wait_for("up")
        second.send(signal.SIGKILL)
        first.end(60)
    (cause,) = events(path)
    assert (cause["ranks"], cause["nodes"], cause["kind"]) == ([], [1], "node lost")
    assert "torshrun: node 1 failed first: node lost" in first.output


def test_what_cannot_be_started_on_one_node_is_that_nodes_fault(torshrun: Launcher) -> None:
    program = torshrun.folder / "program"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    path = torshrun.folder / "events"
    with Job.over_tcp(torshrun, "2", "--nproc-per-node=1", "--no-python") as job:
        first = job.start("--events", str(path), str(program))
        first.wait_for("serves the job's store")
        broken = torshrun.folder / "broken"
        broken.write_text("#!/no/such/interpreter\n")
        broken.chmod(0o755)
        job.start(str(broken))
        first.end(60)
    (cause,) = events(path)
    assert (cause["nodes"], cause["kind"]) == ([1], "file missing")
    assert "cannot run workers: " in first.output
    assert "cannot start" in first.output
