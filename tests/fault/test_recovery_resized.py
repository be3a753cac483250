"""Nodes that are lost, leave or come while the workers of the others keep their processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.etcd_servers import EtcdCluster
from support.launcher import Launcher
from support.processes import soon
from support.trainings import (
    EACH,
    Training,
    Trainings,
    check_as_undisturbed,
    outcome,
    trainings,
)

STEPS, PAUSE = 120, "0.7"
"""Enough for nodes to come and go, and seconds that each step takes until the test is done."""


@pytest.fixture
def fast(tmp_path: Path, torshrun: Launcher) -> Path:
    """A file; steps take a while as long as there is none."""
    torshrun.environ["FAST"] = str(tmp_path / "fast")
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "inductor")
    return tmp_path / "fast"


@pytest.fixture
def train(torshrun: Launcher, fast: Path) -> Iterator[Trainings]:
    with trainings(torshrun) as start:
        yield start


def committed(training: Training, *nodes: int) -> int:
    """How many steps these nodes have told of."""
    return max(outcome([training.job.nodes[n].output for n in nodes]).steps, default=-1) + 1


def wait_for_steps(training: Training, count: int, *nodes: int) -> None:
    """Wait until these nodes have committed so many steps more."""
    least = committed(training, *nodes) + count
    assert soon(lambda: committed(training, *nodes) >= least, 60), training.job.nodes[0].output


def test_a_job_goes_on_smaller_and_grows_again(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(3, STEPS, least=2, pause=PAUSE)
    training.job.nodes[0].wait_for("6 workers in all")
    wait_for_steps(training, 2, 0, 1, 2)
    time.sleep(Random().random())
    before = [training.present(node) for node in (0, 1)]
    training.job.nodes[2].send(signal.SIGKILL)
    training.job.nodes[0].wait_for("was lost; the others continue")
    wait_for_steps(training, 3, 0, 1)
    training.start()
    training.wait_until_it_trains(3)
    wait_for_steps(training, 3, 0, 1, 3)
    assert [training.present(node) for node in (0, 1)] == before
    fast.touch()
    found, outputs = training.end(2)
    assert check_as_undisturbed(found, tmp_path)[-3:] == [6, 4, 6], outputs


def test_replicas_of_torch_models_go_on_smaller_and_grow_again(
    train: Trainings, torshrun: Launcher, tmp_path: Path, fast: Path
) -> None:
    """With torch's own DistributedDataParallel. Ours is nn's, which goes through all else here."""
    kind = "torch-own"
    torshrun.share_torch()
    training = train(2, STEPS, least=1, pause=PAUSE, kind=kind)
    wait_for_steps(training, 2, 1)
    before = training.present(0)
    training.job.nodes[1].send(signal.SIGKILL)
    training.job.nodes[0].wait_for("was lost; the others continue")
    wait_for_steps(training, 2, 0)
    training.start()
    training.wait_until_it_trains(2)
    wait_for_steps(training, 2, 2)
    assert training.present(0) == before
    fast.touch()
    found, outputs = training.end(1)
    assert check_as_undisturbed(found, tmp_path, kind)[-3:] == [4, 2, 4], outputs


def test_a_spare_takes_the_place_of_a_lost_node(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(2, STEPS, pause=PAUSE)
    training.job.nodes[0].wait_for("4 workers in all")
    wait_for_steps(training, 1, 0, 1)
    training.start()
    training.job.nodes[2].wait_for("maximum")
    before = training.present(0)
    training.job.nodes[1].send(signal.SIGKILL)
    training.wait_until_it_trains(2)
    wait_for_steps(training, 3, 0, 2)
    assert training.present(0) == before
    fast.touch()
    found, outputs = training.end(1)
    assert check_as_undisturbed(found, tmp_path) == [4], outputs


def test_without_a_spare_the_others_wait_for_the_least_number_of_nodes(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(2, STEPS, pause=PAUSE)
    wait_for_steps(training, 1, 0, 1)
    before = training.present(0)
    training.job.nodes[1].send(signal.SIGKILL)
    training.job.nodes[0].wait_for("the job waits for at least 2")
    assert training.present(0) == before
    training.start()
    training.wait_until_it_trains(2)
    assert training.present(0) == before
    fast.touch()
    found, outputs = training.end(1)
    assert check_as_undisturbed(found, tmp_path) == [4], outputs


@pytest.mark.etcd
def test_the_first_node_may_be_lost_if_all_meet_in_etcd(
    train: Trainings, tmp_path: Path, fast: Path, etcd: EtcdCluster
) -> None:
    training = train(3, STEPS, least=2, pause=PAUSE, etcd=",".join(etcd.endpoints))
    training.job.nodes[0].wait_for("6 workers in all")
    wait_for_steps(training, 2, 0, 1, 2)
    time.sleep(Random().random())
    before = [training.present(node) for node in (1, 2)]
    training.job.nodes[0].send(signal.SIGKILL)
    training.job.nodes[1].wait_for("lost; the others continue")
    wait_for_steps(training, 3, 1, 2)
    training.start()
    training.wait_until_it_trains(3)
    wait_for_steps(training, 3, 1, 2, 3)
    assert [training.present(node) for node in (1, 2)] == before
    fast.touch()
    found, outputs = training.end(0)
    assert check_as_undisturbed(found, tmp_path)[-3:] == [6, 4, 6], outputs


def test_a_node_that_is_told_to_go_leaves_the_others_their_processes(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(3, STEPS, least=2, pause=PAUSE)
    training.job.nodes[0].wait_for("6 workers in all")
    wait_for_steps(training, 2, 0, 1, 2)
    before = [training.present(node) for node in (0, 1)]
    training.job.nodes[2].send(signal.SIGTERM)
    training.job.nodes[0].wait_for("leaves: .*; the others continue")
    wait_for_steps(training, 3, 0, 1)
    assert [training.present(node) for node in (0, 1)] == before
    fast.touch()
    outputs = [node.end(300) for node in training.job.nodes]
    assert [code for code, _ in outputs] == [0, 0, 75], outputs
    found = outcome([output for _, output in outputs])
    assert check_as_undisturbed(found, tmp_path)[-2:] == [6, 4], outputs


@pytest.mark.etcd
def test_agents_may_be_killed_at_any_moment(
    train: Trainings, tmp_path: Path, fast: Path, etcd: EtcdCluster
) -> None:
    random, kills = Random(int(time.time())), 3
    training = train(3, STEPS, least=2, pause=PAUSE, etcd=",".join(etcd.endpoints))
    training.job.nodes[0].wait_for("6 workers in all")
    present, killed = [0, 1, 2], []
    wait_for_steps(training, 1, *present)
    begun = [training.present(node)[-EACH:] for node in present]
    for _ in range(kills):
        time.sleep(random.random())
        killed.append(present.pop(random.randrange(len(present))))
        training.job.nodes[killed[-1]].send(signal.SIGKILL)
        training.start()
        present.append(len(training.job.nodes) - 1)
        training.wait_until_it_trains(present[-1])
        begun.append(training.present(present[-1]))
        wait_for_steps(training, random.randrange(3), *present)
    assert [training.present(node) for node in present] == [begun[node] for node in present]
    fast.touch()
    found, outputs = training.end(*killed)
    assert check_as_undisturbed(found, tmp_path)[-1] == 6, outputs
