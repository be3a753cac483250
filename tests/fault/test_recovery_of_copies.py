"""Copies of sharded models on the next node, when that is lost, too, or has a damaged one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.etcd_servers import EtcdCluster
from support.launcher import Launcher
from support.trainings import (
    TOGETHER,
    Trainings,
    check_as_undisturbed,
    outcome,
    trainings,
    undisturbed,
)

STEPS, KIND = 16, "nn-fsdp"


@pytest.fixture
def train(tmp_path: Path, torshrun: Launcher) -> Iterator[Trainings]:
    torshrun.environ["FAST"] = str(tmp_path / "fast")
    with trainings(torshrun) as start:
        yield start


@pytest.mark.parametrize("meet", ["tcp", pytest.param("etcd", marks=pytest.mark.etcd)])
def test_when_a_node_and_the_next_are_lost_all_workers_begin_with_their_own_state(
    train: Trainings, tmp_path: Path, meet: str, request: pytest.FixtureRequest
) -> None:
    """Nothing of the lost state is mixed with what is left of it."""
    etcd = ""
    if meet == "etcd":
        cluster: EtcdCluster = request.getfixturevalue("etcd")
        etcd = ",".join(cluster.endpoints)
    training = train(3, STEPS, least=1, pause="0.4", kind=KIND, etcd=etcd, rdzv_conf=TOGETHER)
    training.job.nodes[0].wait_for("6 workers in all")
    training.wait_until_it_trains()
    training.job.nodes[0].wait_for("step 4 ", 60)
    for node in (1, 2):
        training.job.nodes[node].send(signal.SIGKILL)
    if not etcd:  # there the leader may be among the lost, and all workers start again for that
        training.job.nodes[0].wait_for("are whole in no memory", 60)
    (tmp_path / "fast").touch()
    code, output = training.job.nodes[0].end(200)
    assert code == 0, output
    begun = [index for index in range(len(output)) if output.startswith("start 0 ", index)]
    again = outcome([output[begun[-1] :]])
    expected = undisturbed(tmp_path, [2] * STEPS, KIND)
    assert output[begun[-1] :].split()[3] == "0", output
    assert again.steps == expected.steps, output
    assert again.totals == expected.totals, output


@pytest.mark.parametrize("has_spare", [True, False], ids=["a spare", "fewer ranks"])
def test_a_damaged_copy_on_the_next_node_is_passed_over(
    train: Trainings, tmp_path: Path, has_spare: bool
) -> None:
    flip = "flip-copy:backward:6:0"
    training = train(2, STEPS, flip, least=1, pause="0.4", kind=KIND, rdzv_conf=TOGETHER)
    if has_spare:
        training.start().wait_for("maximum", 60)
    training.job.nodes[0].wait_for("flipped", 60)
    before = training.present(0)
    training.job.nodes[1].send(signal.SIGKILL)
    training.job.nodes[0].wait_for("passed over a state in memory: .* of step 6 is damaged", 60)
    (tmp_path / "fast").touch()
    found, outputs = training.end(1)
    assert {found.last[rank] for rank in (0, 1)} == {*before}, outputs
    sizes = check_as_undisturbed(found, tmp_path, KIND)
    assert sizes == ([4] if has_spare else [4, 2]), outputs
