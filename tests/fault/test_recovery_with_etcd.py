"""What is lost together with the leader, or with the store itself, under workers that go on."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.etcd_servers import EtcdCluster
from support.launcher import Launcher
from support.processes import soon
from support.trainings import (
    EACH,
    Training,
    Trainings,
    check_as_undisturbed,
    kill,
    outcome,
    trainings,
)

pytestmark = pytest.mark.etcd
STEPS, PAUSE = 200, "0.4"


@pytest.fixture
def fast(tmp_path: Path, torshrun: Launcher) -> Path:
    """A file; steps take a while as long as there is none."""
    torshrun.environ["FAST"] = str(tmp_path / "fast")
    return tmp_path / "fast"


@pytest.fixture
def train(torshrun: Launcher, fast: Path) -> Iterator[Trainings]:
    with trainings(torshrun) as start:
        yield start


def begin(train: Trainings, etcd: EtcdCluster, least: int, most: int) -> Training:
    """A training of `least` nodes or more that have committed steps."""
    where = ",".join(etcd.endpoints)
    training = train(most, STEPS, least=least, pause=PAUSE, etcd=where, rdzv_id="job")
    training.wait_until_it_trains()
    training.job.nodes[0].wait_for(f"{most * EACH} workers in all", 60)
    wait_for_steps(training)
    return training


def wait_for_steps(training: Training, *killed: int) -> None:
    """Wait until two steps more are committed."""

    def newest() -> int:
        nodes = training.job.nodes
        told = [each.output for n, each in enumerate(nodes) if n not in killed]
        return max(outcome(told).steps, default=-1)

    least = newest() + 2
    assert soon(lambda: newest() >= least, 60), training.job.nodes[0].output


def test_rank_0_and_the_leader_are_lost_at_once(
    train: Trainings, etcd: EtcdCluster, tmp_path: Path, fast: Path
) -> None:
    training = begin(train, etcd, 2, 3)
    told = json.loads(training.job.control("status", "job", "--json"))
    (leader,) = [row["node_rank"] for row in told["nodes"] if row["id"] == told["leader"]]
    places = [re.findall(r"node (\d) of 3", each.output)[-1] for each in training.job.nodes]
    leads, first = places.index(str(leader)), places.index("0")
    before = {n: training.present(n) for n in range(3) if n != leads}
    if first != leads:
        kill(training.present(first)[:1])
    training.job.nodes[leads].send(signal.SIGKILL)
    other = next(n for n in before if n != first)
    training.job.nodes[other].wait_for("lost.*; the others continue", 60)
    training.job.nodes[other].wait_for("4 workers in all", 60)
    wait_for_steps(training, leads)
    kept = [pid for pids in before.values() for pid in pids]
    assert set(kept) >= set(training.present(other)) == set(before[other])
    fast.touch()
    found, outputs = training.end(leads)
    assert check_as_undisturbed(found, tmp_path)[-2:] == [6, 4], outputs


def test_an_etcd_that_was_put_back_has_all_workers_start_again_once(
    train: Trainings, etcd: EtcdCluster, fast: Path
) -> None:
    """It is as it was before a round that workers went on in."""
    training = begin(train, etcd, 1, 2)
    before = etcd.copy("before")
    training.job.nodes[1].send(signal.SIGKILL)
    training.job.nodes[0].wait_for("lost; the others continue", 60)
    wait_for_steps(training, 1)
    kept = training.present(0)
    etcd.put_back(before)
    training.job.nodes[0].wait_for("so its nodes meet anew", 60)
    assert soon(lambda: training.present(0) and not {*kept} & {*training.present(0)}, 90)
    wait_for_steps(training, 1)
    assert len(training.pids(0)) == 2 * EACH, training.job.nodes[0].output
    fast.touch()
    code, output = training.job.nodes[0].end(300)
    assert code == 0, output
    assert len(outcome([output]).totals) == 1, output
