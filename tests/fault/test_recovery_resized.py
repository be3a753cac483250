"""Nodes that are lost, leave or come while the workers of the others keep their processes."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.etcd_servers import EtcdCluster
from support.hosts import cut_off, needs_hosts, plug_in_again, plugged
from support.launcher import Launcher
from support.processes import soon
from support.trainings import (
    EACH,
    Training,
    Trainings,
    changes,
    check_as_undisturbed,
    check_samples,
    kill,
    outcome,
    trainings,
    worlds,
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
    assert all("1 of its 4 nodes did not stay to the end" in outputs[n] for n in (0, 1, 3))


def test_the_others_repeat_no_step_when_a_node_comes(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(2, STEPS, least=1, begin=1, pause="1")
    wait_for_steps(training, 2, 0)
    before = training.present(0)
    training.start()
    training.job.nodes[0].wait_for("ends at the next commit: .* joined", 90)
    training.wait_until_it_trains(1)
    wait_for_steps(training, 2, 0, 1)
    assert (training.repeats(0), training.present(0)) == ([], before)
    fast.touch()
    found, outputs = training.end()
    assert check_as_undisturbed(found, tmp_path) == [2, 4], outputs


def test_a_worker_may_be_lost_while_the_round_is_to_end_at_a_commit(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    """Nobody can commit then: the others do not wait for that."""
    training = train(2, STEPS, least=1, begin=1, pause="2")
    wait_for_steps(training, 1, 0)
    before = training.present(0)
    training.start()
    training.job.nodes[0].wait_for("ends at the next commit: .* joined", 90)
    kill(before[-1:])
    training.job.nodes[0].wait_for("is over: .* has lost workers")
    training.wait_until_it_trains(0, starts=EACH + 1)
    training.wait_until_it_trains(1)
    wait_for_steps(training, 1, 0, 1)
    assert set(training.present(0)) > set(before[:-1])
    fast.touch()
    found, outputs = training.end()
    assert check_as_undisturbed(found, tmp_path) == [2, 4], outputs


def test_a_node_that_is_drained_leaves_after_its_step(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(3, STEPS, least=2, pause="1", rdzv_id="job")
    training.job.nodes[0].wait_for("6 workers in all")
    wait_for_steps(training, 1, 0, 1, 2)
    before = [training.present(node) for node in (0, 1)]
    told = json.loads(training.job.control("status", "job", "--json"))
    (drained,) = [row["id"] for row in told["nodes"] if row["node_rank"] == 2]
    assert "left" in training.job.control("drain", "job", drained)
    training.job.nodes[0].wait_for("ends at the next commit: .* was drained", 90)
    wait_for_steps(training, 2, 0, 1)
    fast.touch()
    ends = [node.end(300) for node in training.job.nodes]
    assert sorted(code for code, _ in ends) == [0, 0, 75], ends
    found = outcome([output for _, output in ends])
    assert check_as_undisturbed(found, tmp_path)[-2:] == [6, 4], ends
    assert [training.repeats(node) for node in range(3)] == [[], [], []]
    assert all(set(found.last.values()) >= set(pids) for pids in before if pids[0] in found.last)


def test_a_job_that_is_scaled_down_shrinks_after_a_step(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(3, STEPS, least=2, pause="1", rdzv_id="job")
    training.job.nodes[0].wait_for("6 workers in all")
    wait_for_steps(training, 1, 0, 1, 2)
    training.job.control("scale", "job", "2")
    training.job.nodes[0].wait_for("ends at the next commit: the job was scaled", 90)
    training.job.nodes[0].wait_for("4 workers in all", 90)
    committed_before = committed(training, 0, 1, 2)
    assert soon(lambda: committed(training, 0, 1, 2) > committed_before + 1, 60)
    fast.touch()
    found, outputs = training.end()
    assert check_as_undisturbed(found, tmp_path)[-2:] == [6, 4], outputs
    assert [training.repeats(node) for node in range(3)] == [[], [], []]


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


@pytest.mark.parametrize("kind", ["nn-fsdp", "torch-fully_shard", "nn-mixed"])
def test_parts_of_sharded_models_are_cut_anew_from_memory(
    train: Trainings, torshrun: Launcher, tmp_path: Path, fast: Path, kind: str
) -> None:
    if kind.startswith("torch"):
        torshrun.share_torch()
    training = train(3, 60, least=2, pause=PAUSE, kind=kind)
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
    outputs = [node.output for node in training.job.nodes]
    assert [training.present(node) for node in (0, 1)] == before, outputs
    fast.touch()
    found, outputs = training.end(2)
    assert check_as_undisturbed(found, tmp_path, kind)[-3:] == [6, 4, 6], outputs


def test_all_workers_may_resume_from_memory_as_fewer_ranks(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(3, 30, least=2, pause=PAUSE, kind="nn-fsdp")
    training.job.nodes[0].wait_for("6 workers in all")
    wait_for_steps(training, 2, 0, 1, 2)
    training.wait_until_all_begin(committed(training, 0, 1, 2))
    training.job.nodes[2].send(signal.SIGKILL)
    kill([pid for node in (0, 1) for pid in training.present(node)])
    committed_before = committed(training, 0, 1, 2)
    training.wait_until_it_trains(0, 1, starts=4)
    fast.touch()
    found, outputs = training.end(2)
    starts = re.findall(r"start \d \d+ (\d+)", "".join(outputs[:2]))
    assert int(starts[-1]) >= committed_before, outputs
    assert check_as_undisturbed(found, tmp_path, "nn-fsdp")[-2:] == [6, 4], outputs


def test_a_spare_takes_the_place_of_a_lost_node(
    train: Trainings, tmp_path: Path, fast: Path
) -> None:
    training = train(2, STEPS, pause=PAUSE)
    training.job.nodes[0].wait_for("4 workers in all", 90)
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


def test_a_newcomer_whose_script_fails_leaves_and_the_others_keep_their_processes(
    train: Trainings, torshrun: Launcher, tmp_path: Path, fast: Path
) -> None:
    training = train(2, STEPS, least=1, begin=1, pause=PAUSE)
    wait_for_steps(training, 1, 0)
    before = training.present(0)
    newcomer = training.job.start(torshrun.script("sys.exit(3)"))
    code, output = newcomer.end(120)
    assert code != 0
    assert "so this node leaves the job" in output, output
    training.job.nodes[0].wait_for(r"leaves: ranks? .*: exit code 3.*; the others continue")
    wait_for_steps(training, 2, 0)
    assert training.present(0) == before
    fast.touch()
    code, output = training.job.nodes[0].end(300)
    assert code == 0
    assert "(succeeded)" in output


@needs_hosts
@pytest.mark.netns
def test_a_node_that_is_cut_off_commits_nothing_and_comes_back(
    train: Trainings, fast: Path
) -> None:
    with plugged(3) as hosts:
        training = train(3, STEPS, least=2, pause=PAUSE, hosts=hosts)
        training.job.nodes[0].wait_for("6 workers in all", 90)
        wait_for_steps(training, 2, 0, 1, 2)
        before = [training.present(node) for node in (0, 1)]
        cut_off(hosts[2])
        cut = committed(training, 0, 1, 2)
        training.job.nodes[0].wait_for("was lost; the others continue", 90)
        assert soon(lambda: not training.present(2), 60), "its workers are fenced"
        wait_for_steps(training, 3, 0, 1)
        assert committed(training, 2) <= cut + 1, "one step may have been voted for already"
        plug_in_again(hosts[2])
        training.wait_until_it_trains(2, starts=2 * EACH)
        wait_for_steps(training, 3, 0, 1, 2)
        told = training.job.nodes[0].output
        assert [training.present(node) for node in (0, 1)] == before, told
        fast.touch()
        found, outputs = training.end()
    assert changes(worlds(found))[-3:] == [6, 4, 6], outputs
    check_samples(found)  # bits are others than on one host, where ranks add in another order
    assert len(found.totals) == 1, outputs
