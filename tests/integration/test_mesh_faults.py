"""A rank of a mesh that fails is named, with its place in the mesh and its step, and not those that
wait for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import mesh_faults
from support.forked import Raised
from support.worlds import run_processes

from torshrun import exit_codes


def whole(results: list[Any]) -> list[Any]:
    for each in results:
        assert not isinstance(each, Raised), vars(each.error).get("trace", each.error)
    return results


@pytest.mark.parametrize("culprit", [0, 7])
def test_a_stage_that_raises_ends_replicas_and_parts_of_layers_too(culprit: int) -> None:
    """Long before the timeout."""
    place = {0: "pp 0, dp 0, tp 0", 7: "pp 1, dp 1, tp 1"}[culprit]
    body = partial(mesh_faults.raising, culprit=culprit)
    for said, seconds in whole(run_processes(mesh_faults.RANKS, body, 60.0)):
        stage = int(culprit > 3)
        assert f"rank {culprit}, {place}, stage {stage}, F2: ArithmeticError: no more" in said
        assert seconds < 60.0


def test_a_rank_that_does_not_come_is_named_by_those_that_wait() -> None:
    body = partial(mesh_faults.sleeping, culprit=1, seconds=6.0)
    said = whole(run_processes(mesh_faults.RANKS, body, 3.0))
    assert "waiting for rank(s) 1 of axis tp (rank 1, pp 0, dp 0, tp 1)" in said[0]
    assert "stage 1, F2 waits for F2 of stage 0: rank 1, pp 0, dp 0, tp 1" in said[5]
    assert said[5].startswith("rank 5, pp 1, dp 0, tp 1")


def torshrun(fault: str, culprit: int, *options: str) -> subprocess.CompletedProcess[str]:
    """A step of all ranks, with a fault of one."""
    script = Path(mesh_faults.__file__)
    environ = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    environ |= {"FAULT": fault, "CULPRIT": str(culprit)}
    options = ("--nproc-per-node", str(mesh_faults.RANKS), "--shutdown-timeout", "5", *options)
    return subprocess.run(
        [sys.executable, "-m", "torshrun", *options, str(script)],
        capture_output=True,
        text=True,
        env=environ,
        timeout=120,
    )


def test_who_loses_a_rank_of_an_axis_names_it_as_all_do() -> None:
    """Rank 5 is rank 0 of its axis dp, and rank 1 of pp and tp."""
    found = torshrun("exits", 5)
    assert found.returncode == 3, found.stderr
    said = re.findall(r"PeerLost: (.*its process has ended \(rank 5,.*)", found.stderr)
    assert said, found.stderr
    for each in said:  # whoever is the first, on one axis or another, ends the waiting of others
        assert re.match(r"rank (0 of axis dp|1 of axis (pp|tp)) was lost during ", each)
        assert each.endswith(
            "(rank 5, pp 1, dp 0, tp 1). Look at rank 5's own output for the cause."
        )
    assert "rank 5 failed first: exit code 3" in found.stderr


def test_torshrun_tells_where_a_rank_stood_that_was_killed() -> None:
    found = torshrun("killed", 5)
    assert "rank 5 most likely failed first: killed by SIGKILL" in found.stderr
    assert "rank 5: in no collective, F2 of stage 1, at pp 1, dp 0, tp 1\n" in found.stderr


def test_torshrun_names_the_rank_with_another_pipeline() -> None:
    found = torshrun("differs", 5)
    assert "rank 5 most likely failed first: mismatch" in found.stderr
    assert "ranks 0-4, 6-7 called 4 microbatches" in found.stderr


def test_torshrun_names_the_rank_that_does_not_come() -> None:
    found = torshrun("sleeps", 1, "--hang-timeout", "3")
    assert found.returncode == exit_codes.HUNG, found.stderr
    said = found.stderr
    assert "of axis tp, group" in said
    assert "for rank 1, pp 0, dp 0, tp 1\n" in said
    assert "  rank 5, pp 1, dp 0, tp 1: waits for F2 of stage 0 (rank 1, pp 0, dp 0, tp 1)" in said
    assert "  rank 1, pp 0, dp 0, tp 1: not in it yet" in said
    assert "; F2 of stage 0" in said
    assert "rank 1 most likely failed first" in said


def test_ranks_that_build_different_things_are_told_before_work_starts() -> None:
    texts = (
        "(4, 1) ('pp', 'dp')",
        "(2, 2) ('dp', 'pp')",
        "4 microbatches",
        "schedule gpipe",
        "PipelineParallel differs between ranks",
        "rank 3, pp 1, dp 1: num_microbatches=0: a whole number",
        "4 experts",
    )
    everyone = whole(run_processes(4, mesh_faults.differing, 20.0))
    for said in everyone:
        for text, found in zip(texts, said, strict=False):
            assert text in found
    assert [bool(said[-1]) for said in everyone] == [False, False, True, True]  # along its axis


def test_ranks_that_ask_for_groups_of_different_axes_are_told_who_did_not_come() -> None:
    said = whole(run_processes(4, mesh_faults.of_another_axis, 2.0))
    assert said[:2] == ["", ""]
    assert "rank(s) 1 to make the group of axis dp (rank 3, pp 1, dp 1;" in said[2]
    assert "rank(s) 0 to make the group of axis pp (rank 1, pp 0, dp 1;" in said[3]


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_ranks_with_models_of_different_frameworks_are_told() -> None:
    everyone = whole(run_processes(4, mesh_faults.of_two_frameworks, 20.0))
    for said, _ in everyone:
        assert "2 stages of torch" in said
        assert "2 stages of nn" in said
    assert ["framework='torch'" in said for _, said in everyone] == [False, False, True, True]
