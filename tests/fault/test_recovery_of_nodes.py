"""Workers of one node that are lost while those of all nodes continue: the same bits."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest
from support.etcd_servers import EtcdCluster
from support.launcher import Launcher
from support.nodes import Job
from support.processes import soon
from support.trainings import (
    EACH,
    SCRIPT,
    TOGETHER,
    Outcome,
    Trainings,
    alone,
    kill,
    outcome,
    trainings,
)

from torshrun.agent.recovery import NOTICE_OF_NODES


@pytest.fixture
def train(torshrun: Launcher) -> Iterator[Trainings]:
    with trainings(torshrun) as start:
        yield start


@cache
def undisturbed(folder: Path, ranks: int, steps: int) -> Outcome:
    return outcome(alone(folder, ranks, "nn", steps))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


def check_same(found: Outcome, expected: Outcome, *, least: int) -> None:
    """Each step was committed with one content; at least so many ranks have told of it."""
    assert sorted(found.steps) == sorted(expected.steps)
    for step, told in found.steps.items():
        assert told <= expected.steps[step], f"step {step} was committed with two contents"
        assert len(told) >= least
    assert found.totals == expected.totals
    assert found.last == {rank: pids[-1] for rank, pids in found.pids.items()}


LOSSES = {
    "one after the other": [
        "kill:before:2:0",
        "kill:backward:4:3",
        "kill:vote:6:2",
        "kill:half:8:1",
        "raise:forward:10:3",
        "exit:committed:12:2",
    ],
    "while ranks heal": ["kill:backward:5:1", "kill:heal:5:1", "kill:half:9:3", "kill:heal:9:0"],
}


@pytest.mark.parametrize("case", LOSSES)
def test_workers_of_all_nodes_go_on_with_the_same_bits(
    train: Trainings, folder: Path, case: str
) -> None:
    losses = LOSSES[case]
    found, outputs = train(2, 15, *losses).end()
    check_same(found, undisturbed(folder, 2 * EACH, 15), least=2 * EACH - 1)
    victims = [int(each.rpartition(":")[2]) for each in losses]
    if not any("heal" in each for each in losses):
        for rank, pids in found.pids.items():
            assert len(pids) == 1 + victims.count(rank), (rank, outputs)
    for output in outputs:
        assert f"round {len(losses)}: node" in output
    told = sum(output.count("replaced while the others continue") for output in outputs)
    assert told == len(losses), outputs


def test_a_node_may_lose_all_its_workers(train: Trainings, folder: Path) -> None:
    training = train(2, 60, pause="0.05")
    training.wait_until_it_trains()
    kill(training.present(0))
    found, outputs = training.end()
    check_same(found, undisturbed(folder, 2 * EACH, 60), least=EACH)
    assert [len(found.pids[rank]) for rank in range(4)].count(2) == EACH, outputs


def test_two_nodes_lose_a_worker_at_once(train: Trainings, folder: Path) -> None:
    training = train(2, 60, pause="0.05")
    training.wait_until_it_trains()
    kill([training.present(0)[0], training.present(1)[-1]])
    found, outputs = training.end()
    check_same(found, undisturbed(folder, 2 * EACH, 60), least=EACH)
    assert sorted(len(pids) for pids in found.pids.values()) == [1, 1, 2, 2], outputs


def test_kills_at_any_moment(train: Trainings, folder: Path) -> None:
    random, kills, steps = Random(int(time.time())), 4, 200
    training = train(2, steps, pause="0.02", preload="auto")
    for number in range(kills):
        started = 2 * EACH + number
        everybody = [0, 1]
        assert soon(lambda: sum(len(training.pids(node)) for node in everybody) == started, 60)  # noqa: B023
        time.sleep(random.random() * 0.5)
        kill([random.choice([*training.present(0), *training.present(1)])])
    found, _ = training.end()
    check_same(found, undisturbed(folder, 2 * EACH, steps), least=2 * EACH - kills)
    assert sum(map(len, found.pids.values())) == 2 * EACH + kills


def test_of_a_hang_only_the_worker_at_fault_is_replaced(train: Trainings, folder: Path) -> None:
    training = train(2, 60, pause="0.05", hang_timeout="2")
    training.wait_until_it_trains()
    kill(training.present(1)[:1], signal.SIGSTOP)
    found, outputs = training.end()
    check_same(found, undisturbed(folder, 2 * EACH, 60), least=2 * EACH - 1)
    assert sum(map(len, found.pids.values())) == 2 * EACH + 1, outputs
    assert "failed first: hung, then killed by SIGKILL" in outputs[1]


def test_who_does_not_leave_the_round_is_replaced_too(train: Trainings, folder: Path) -> None:
    training = train(2, 60, pause="0.05")
    training.wait_until_it_trains()
    kill(training.present(1)[:1], signal.SIGSTOP)
    kill(training.present(0)[:1])
    found, outputs = training.end()
    check_same(found, undisturbed(folder, 2 * EACH, 60), least=EACH)
    assert sum(map(len, found.pids.values())) == 2 * EACH + 2, outputs


def test_a_node_none_of_whose_workers_leaves_does_not_hold_the_others_for_long(
    train: Trainings, folder: Path
) -> None:
    """How long is known from the steps of the other node's worker: node.end() waits for 100 s."""
    training = train(2, 60, pause="0.05")
    training.wait_until_it_trains()
    kill(training.present(1), signal.SIGSTOP)
    kill(training.present(0)[:1])
    found, outputs = training.end()
    check_same(found, undisturbed(folder, 2 * EACH, 60), least=1)
    assert sum(map(len, found.pids.values())) == 2 * EACH + 3, outputs
    assert "it did not leave the round in which another worker was lost" in outputs[1]


@pytest.mark.parametrize("amid", [False, True], ids=["in a step", "while workers leave the round"])
def test_when_an_agent_dies_the_others_go_on(train: Trainings, folder: Path, amid: bool) -> None:
    training = train(3, 100, least=2, pause="0.02", rdzv_conf=TOGETHER)
    training.wait_until_it_trains()
    if amid:
        kill(training.present(0)[:1])
        time.sleep(0.02)
    training.job.nodes[2].send(signal.SIGKILL)
    found, outputs = training.end(2)
    assert sorted(found.steps) == [*range(100)]
    assert len(found.totals) == 1, found.totals
    assert len(training.pids(0)) == EACH + amid, "\n".join(outputs)
    assert len(training.pids(1)) == EACH, "\n".join(outputs)
    assert all("(succeeded)" in output for output in outputs[:2])


@pytest.mark.etcd
def test_nodes_that_meet_in_etcd_replace_a_worker_when_it_has_been_away(
    train: Trainings, folder: Path, etcd: EtcdCluster
) -> None:
    training = train(2, 200, pause="0.05", etcd=",".join(etcd.endpoints))
    training.wait_until_it_trains()
    (member,) = etcd.members
    member.pause()
    kill(training.present(1)[:1])
    time.sleep(2)
    member.go_on()
    training.wait_until_it_trains(1, starts=EACH + 1)
    kill(training.present(0)[:1])
    found, outputs = training.end()
    check_same(found, undisturbed(folder, 2 * EACH, 200), least=EACH)
    assert sum(map(len, found.pids.values())) == 2 * EACH + 2, outputs


def test_a_node_whose_workers_have_not_joined_has_all_start_again(
    train: Trainings, torshrun: Launcher
) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        model = nn.Linear(2, 1)
        nn.init.zeros_(model.weight); nn.init.zeros_(model.bias)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        job = tr.elastic.join(model=model, optimizer=optimizer)
        for step in job.steps(3):
            with step:
                step.commit()
        print("through", rank, flush=True)
        if rank == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        tr.barrier()
        print("done", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        """
    )
    with Job.over_tcp(torshrun, "2", f"--nproc-per-node={EACH}", "--max-restarts=2") as job:
        nodes = [job.start(script), job.start(script)]
        ends = [node.end(60) for node in nodes]
    assert [code for code, _ in ends] == [0, 0], ends
    assert all(output.count("done 1") == EACH for _, output in ends), ends


WAYS_OUT = {"exits": "os._exit(0)", "leaves the block": "sys.exit(0)", "leaves the loop": "break"}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_an_early_end_of_all_workers_of_a_node_ends_the_others_at_once(
    torshrun: Launcher, way: str
) -> None:
    within, behind = ("pass", "break") if way == "leaves the loop" else (WAYS_OUT[way], "pass")
    script = torshrun.script(
        f"""
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        model = nn.Linear(2, 1)
        nn.init.zeros_(model.weight); nn.init.zeros_(model.bias)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        job = tr.elastic.join(model=model, optimizer=optimizer)
        for step in job.steps(9):
            is_early = rank >= {EACH} and step.number == 3
            with step:
                if is_early:
                    {within}
                step.commit()
            if is_early:
                {behind}
        """
    )
    begun = time.monotonic()
    with Job.over_tcp(torshrun, "2", f"--nproc-per-node={EACH}", "--max-restarts=1") as job:
        ends = [node.end(NOTICE_OF_NODES) for node in (job.start(script), job.start(script))]
    assert time.monotonic() - begun < NOTICE_OF_NODES
    assert all(code == 79 for code, _ in ends), ends
    assert "it has ended with exit code 0 before the last step" in "".join(out for _, out in ends)


def test_when_the_budget_is_spent_the_job_ends_as_ever(torshrun: Launcher) -> None:
    losses = ["raise:forward:3:1", "raise:forward:5:2"]
    with Job.over_tcp(torshrun, "2", f"--nproc-per-node={EACH}", "--max-restarts=1") as job:
        nodes = [job.start(SCRIPT, "nn", "15", *losses) for _ in range(2)]
        ends = [node.end(60) for node in nodes]
    assert [code for code, _ in ends] == [79, 79], ends
    text = "".join(output for _, output in ends)
    assert text.count("replaced while the others continue") == 1
    assert "this rank is to fail in forward" in text
    assert "rank 2 failed first" in text or "rank 2 most likely failed first" in text, text
    assert max(outcome([text]).steps) == 4
