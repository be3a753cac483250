"""Workers that are lost while the others continue: same processes, same bits."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support.launcher import Launcher
from support.processes import soon
from support.trainings import alone

from torshrun.agent.recovery import NOTICE

SCRIPT = str(Path(__file__).parent.parent / "support" / "recovering.py")
RANKS = 3
PRELOAD = {"nn": "--preload=auto", "torch": "--preload=torch._dynamo"}
"""How standbys of each framework are prepared."""
Steps = Mapping[int, frozenset[str]]


class Outcome(NamedTuple):
    """What a job printed: pids of each rank in order, what was committed, and how it ended."""

    starts: Mapping[int, list[int]]
    joined_at: list[int]
    steps: Steps
    ends: frozenset[str]
    last_pids: Mapping[int, int]


def outcome(out: str) -> Outcome:
    starts: dict[int, list[int]] = {}
    joined_at = []
    for rank, pid, number in re.findall(r"start (\d+) (\d+) (\d+)", out):
        starts.setdefault(int(rank), []).append(int(pid))
        joined_at.append(int(number))
    steps: dict[int, set[str]] = {}
    for step, rest in re.findall(r"step (\d+) (.+)", out):
        steps.setdefault(int(step), set()).add(rest)
    ends = re.findall(r"end (\d+) (\d+) (\S+)", out)
    return Outcome(
        starts,
        joined_at,
        {step: frozenset(each) for step, each in steps.items()},
        frozenset(total for _, _, total in ends),
        {int(rank): int(pid) for rank, pid, _ in ends},
    )


@cache
def undisturbed(folder: Path, way: str, steps: int) -> Outcome:
    return outcome("".join(alone(folder, RANKS, way, steps)))


@pytest.fixture(autouse=True)
def no_cache_in_tmp(torshrun: Launcher) -> None:
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


def check_same(found: Outcome, expected: Outcome) -> None:
    assert sorted(found.steps) == sorted(expected.steps)
    for step, told in found.steps.items():
        # A rank that dies behind the vote does not tell of its step, and nobody repeats it.
        assert told <= expected.steps[step], f"step {step} was committed with two contents"
        assert len(told) >= RANKS - 1
    assert found.ends == expected.ends
    assert found.last_pids == {rank: pids[-1] for rank, pids in found.starts.items()}


LOSSES = {
    "kills at every point": (
        "nn",
        [
            "kill:before:2:0",
            "kill:forward:4:1",
            "kill:backward:6:2",
            "kill:vote:8:1",
            "kill:half:10:0",
            "kill:committed:12:2",
        ],
    ),
    "exceptions and exits": (
        "nn",
        ["raise:backward:2:1", "exit:vote:4:0", "raise:half:6:2", "raise:before:8:1"],
    ),
    "of torch's models": (
        "torch",
        ["kill:backward:3:0", "raise:vote:9:2"],
    ),
    "while ranks heal": (
        "nn",
        ["kill:backward:5:1", "kill:heal:5:1", "kill:heal:5:0", "kill:half:9:2", "kill:heal:9:0"],
    ),
    "of shards, at every point": (
        "nn-fsdp",
        [
            "kill:before:1:0",
            "kill:forward:2:1",
            "kill:backward:4:2",
            "kill:vote:6:1",
            "kill:gradients:7:0",
            "kill:half:9:0",
            "kill:committed:11:2",
            "kill:version:12:1",
        ],
    ),
    "of torch's shards": (
        "torch-fully_shard",
        ["kill:gradients:6:1", "kill:half:9:2", "kill:committed:12:1"],
    ),
    "exceptions and exits with shards": (
        "nn-mixed",
        ["raise:backward:3:1", "exit:vote:6:0", "raise:half:9:2"],
    ),
    "while shards heal": (
        "nn-fsdp",
        ["kill:half:5:1", "kill:heal:5:1", "kill:heal:5:0", "kill:gradients:9:2", "kill:heal:9:0"],
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_the_others_go_on_with_the_same_bits(torshrun: Launcher, folder: Path, case: str) -> None:
    way, losses = LOSSES[case]
    launch = (f"--nproc-per-node={RANKS}", f"--max-restarts={len(losses)}")
    launch = (*launch, PRELOAD[way.partition("-")[0]])
    code, out, err = torshrun.run(*launch, SCRIPT, way, "15", *losses, within=200)
    assert code == 0, err
    found = outcome(out)
    check_same(found, undisturbed(folder, way, 15))
    victims = [int(each.rpartition(":")[2]) for each in losses]
    if not any("heal" in each for each in losses):
        for rank, pids in found.starts.items():
            assert len(pids) == 1 + victims.count(rank), (rank, err)
    assert err.count("replaced while the others continue") == len(losses), err
    assert "restarting" not in err


def test_several_shards_are_lost_at_once(torshrun: Launcher, folder: Path) -> None:
    losses = ["kill:vote:4:0,2", "kill:gradients:8:1,2"]
    launch = (f"--nproc-per-node={RANKS}", "--max-restarts=4", PRELOAD["nn"])
    code, out, err = torshrun.run(*launch, SCRIPT, "nn-fsdp", "15", *losses)
    assert code == 0, err
    found = outcome(out)
    check_same(found, undisturbed(folder, "nn-fsdp", 15))
    assert {rank: len(pids) for rank, pids in found.starts.items()} == {0: 2, 1: 2, 2: 3}
    assert "restarting" not in err


def test_a_flipped_bit_of_a_shard_is_passed_over(torshrun: Launcher, folder: Path) -> None:
    launch = (f"--nproc-per-node={RANKS}", "--max-restarts=1", PRELOAD["nn"])
    code, out, err = torshrun.run(*launch, SCRIPT, "nn-fsdp", "15", "flip:vote:6:1")
    assert code == 0, err
    check_same(outcome(out), undisturbed(folder, "nn-fsdp", 15))
    assert "rank 1 passed over a state in memory" in err
    assert "of step 6 is damaged" in err


def test_a_worker_that_hangs_is_replaced_alone(torshrun: Launcher, folder: Path) -> None:
    launch = (f"--nproc-per-node={RANKS}", "--max-restarts=1", "--hang-timeout=2")
    code, out, err = torshrun.run(*launch, SCRIPT, "nn", "15", "stop:backward:5:1")
    assert code == 0, err
    found = outcome(out)
    check_same(found, undisturbed(folder, "nn", 15))
    assert {rank: len(pids) for rank, pids in found.starts.items()} == {0: 1, 1: 2, 2: 1}
    assert "no progress for 2 s: ranks 0, 2 wait in" in err
    assert "rank 1 failed first: hung, then killed by SIGKILL" in err, err


@pytest.mark.parametrize("way", ["nn", "nn-fsdp"])
def test_kills_at_any_moment(torshrun: Launcher, folder: Path, way: str) -> None:
    random, kills, steps = Random(int(time.time())), 4, 150
    torshrun.environ["PAUSE"] = "0.02"
    out_path = torshrun.folder / "out"
    with out_path.open("w") as file:
        process = torshrun.start(
            f"--nproc-per-node={RANKS}",
            f"--max-restarts={kills}",
            "--preload=auto",
            SCRIPT,
            way,
            str(steps),
            stdout=file,
        )
        for number in range(kills):
            assert soon(lambda: len(pids_in(out_path)) == RANKS + number, 40)  # noqa: B023
            time.sleep(random.random() * 0.5)
            alive = [pid for pid in pids_in(out_path) if Path(f"/proc/{pid}").exists()]
            os.kill(random.choice(alive), signal.SIGKILL)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    found = outcome(out_path.read_text())
    check_same(found, undisturbed(folder, way, steps))
    assert sum(map(len, found.starts.values())) == RANKS + kills


def pids_in(path: Path) -> list[int]:
    return [int(pid) for pid in re.findall(r"start \d+ (\d+)", path.read_text())]


def test_when_the_budget_is_spent_the_job_ends_as_ever(torshrun: Launcher) -> None:
    launch = (f"--nproc-per-node={RANKS}", "--max-restarts=1")
    losses = ["raise:forward:3:1", "raise:forward:5:2"]
    code, out, err = torshrun.run(*launch, SCRIPT, "nn", "15", *losses)
    assert code == 79, err
    assert err.count("replaced while the others continue") == 1
    assert "rank 2 failed first" in err or "rank 2 most likely failed first" in err, err
    assert "this rank is to fail in forward" in err
    assert "no restarts left" in err
    assert max(outcome(out).steps) == 4


def test_a_finding_belongs_to_the_round_that_was_lost(torshrun: Launcher) -> None:
    events = torshrun.folder / "events"
    logs = torshrun.folder / "logs"
    launch = (f"--nproc-per-node={RANKS}", "--max-restarts=2", f"--events={events}")
    losses = ["raise:forward:3:1", "raise:forward:5:2"]
    code, _, err = torshrun.run(*launch, f"--log-dir={logs}", SCRIPT, "nn", "15", *losses)
    assert code == 0, err
    told = [json.loads(line) for line in events.read_text().splitlines()]
    found = [(each["round"], each["ranks"]) for each in told if each["event"] == "root_cause"]
    assert found == [(0, [1]), (1, [2])]
    failed = [(each["round"], each["rank"]) for each in told if each["event"] == "worker_failed"]
    assert failed == [(0, 1), (1, 2)]
    kept = sorted(path.parent.name for path in logs.rglob("finding_0.json"))
    assert kept == ["attempt_0", "attempt_1"]


def test_without_a_budget_nothing_changes(torshrun: Launcher) -> None:
    code, out, err = torshrun.run(
        f"--nproc-per-node={RANKS}", SCRIPT, "nn", "15", "raise:forward:3:1"
    )
    assert code == 1, err
    assert "replaced" not in err
    assert max(outcome(out).steps) == 2


OTHER_PROGRAM = """
    import numpy as np
    import torch
    import torsh_runtime as tr
    tr.init_process_group()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 40), torch.nn.Dropout(0.2), torch.nn.Linear(40, 1)]
    model = torch.nn.Sequential(*layers)
    wrapped = tr.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    data = torch.randn(60, 6)
    sampler = tr.elastic.ElasticSampler(data, 12)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler.ahead())
    parts = {"model": model, "sampler": sampler, "schedule": schedule}
    job = tr.elastic.join(optimizer=optimizer, **parts)
    losses = []
    for step in job.steps(12):
        with step:
            loss = wrapped(step.next(loader)).square().mean()
            with wrapped.no_sync():
                (loss / 2).backward(retain_graph=True)
            if sys.argv[1:] == [str(rank), str(step.number)]:
                if "TORSH_REPLACEMENT" not in os.environ:
                    os.kill(os.getpid(), 9)
            (loss / 2).backward()
            step.commit()
            if "log" in sys.argv:
                if sys.argv[2:] == [str(rank), str(step.number)]:
                    os.kill(os.getpid(), 9)
                tr.all_reduce(np.ones(1))
        schedule.step()
        if not step.is_lost:
            losses.append(loss.item())
    total = sum(each.double().abs().sum().item() for each in model.parameters())
    print("end", total, schedule.last_epoch, optimizer.param_groups[0]["lr"], flush=True)
    """


def test_what_follows_a_lost_block_and_what_a_loader_draws_change_nothing(
    torshrun: Launcher,
) -> None:
    torshrun.share_torch()
    launch = ("--nproc-per-node=2", "--max-restarts=1", torshrun.script(OTHER_PROGRAM))
    code, expected, err = torshrun.run(*launch)
    assert code == 0, err
    assert len({*re.findall("end .*", expected)}) == 1
    code, out, err = torshrun.run(*launch, "1", "7")
    assert code == 0, err
    assert "replaced while the others continue" in err
    assert sorted(out.splitlines()) == sorted(expected.splitlines())


def test_a_schedule_that_ranks_have_at_different_steps_is_named(torshrun: Launcher) -> None:
    torshrun.share_torch()
    launch = ("--nproc-per-node=2", "--max-restarts=1", torshrun.script(OTHER_PROGRAM))
    code, _, err = torshrun.run(*launch, "log", "1", "0")
    assert code == 79, err
    assert "replaced while the others continue" in err
    assert "ranks have parts of different states, such as a schedule" in err


def test_when_all_are_lost_all_start_again(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        model = nn.Linear(2, 1)
        nn.init.zeros_(model.weight); nn.init.zeros_(model.bias)
        job = tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1))
        for step in job.steps(2):
            with step:
                if step.number == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    raise ValueError("all fail")
                step.commit()
        print("done", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert code == 0, err
    assert out.count("done 1") == 2
    assert "restarting" in err
    assert "replaced" not in err


def test_an_early_exit_with_code_0_ends_the_round_at_once(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        nn.manual_seed(0)
        model = tr.DistributedDataParallel(nn.Linear(2, 1))
        job = tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1))
        for step in job.steps(9):
            with step:
                if rank == 1 and step.number == 3:
                    print("left", time.monotonic(), flush=True)
                    sys.exit(0)
                try:
                    step.commit()
                except tr.CommError:
                    print("lost", time.monotonic(), flush=True)
                    raise
        """
    )
    events = torshrun.folder / "events"
    code, out, err = torshrun.run(
        "--nproc-per-node=3", "--max-restarts=1", f"--events={events}", script
    )
    assert code == 79, err
    assert "rank 1 ended too early: with exit code 0, while ranks 0, 2 still needed it" in err
    assert "rank 1 was lost during elastic.join(): it has ended with exit code 0" in err
    assert "replaced" not in err.replace("not replaced", "")
    lost = [float(at) for at in re.findall(r"lost (\S+)", out)]
    assert len(lost) == 4
    told = [json.loads(line) for line in events.read_text().splitlines()]
    ends = [each["time"] for each in told if each["event"] == "worker_exited"]
    assert max(ends[:3]) - min(ends[:3]) < NOTICE / 2


BEHIND_A_COLLECTIVE = """
    import numpy as np
    import torsh_runtime as tr
    from torsh_runtime import nn, optim
    tr.init_process_group()
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    schedule = optim.StepLR(optimizer, step_size=4, gamma=0.9)
    job = tr.elastic.join(model=model, optimizer=optimizer, schedule=schedule)
    for step in job.steps(9):
        with step:
            step.commit()
            if rank == 1 and step.number == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            tr.all_reduce(np.ones(1))
            schedule.step()
    """


def test_a_schedule_that_a_lost_collective_would_hold_back_is_named(torshrun: Launcher) -> None:
    script = torshrun.script(BEHIND_A_COLLECTIVE)
    code, _, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert code == 0, err  # all start again
    assert "a worker was lost after the commit of step 5 and before 'schedule' was changed" in err
    assert "change it directly after step.commit(), before anything communicates" in err


def test_what_a_lost_worker_had_started_ends_with_its_replacement(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import subprocess
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        children = [
            subprocess.Popen(["sh", "-c", "sleep 1000; true"]),
            subprocess.Popen(["sleep", "1000"], start_new_session=True),
        ]
        tr.init_process_group()
        nn.manual_seed(0)
        model = tr.DistributedDataParallel(nn.Linear(2, 1))
        job = tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1))
        print("started", rank, *[each.pid for each in children], flush=True)
        for step in job.steps(4):
            with step:
                if rank == 1 and step.number == 2 and "TORSH_REPLACEMENT" not in os.environ:
                    os.kill(os.getpid(), signal.SIGKILL)
                step.commit()
        print("through", flush=True)
        while not os.path.exists("looked"):
            time.sleep(0.05)
        for each in children:
            each.kill()
        """
    )
    out_path = torshrun.folder / "out"
    with out_path.open("w") as file:
        process = torshrun.start("--nproc-per-node=2", "--max-restarts=1", script, stdout=file)
        try:
            assert soon(lambda: out_path.read_text().count("through") == 2, 60)
            started = re.findall(r"started (\d) (\d+) (\d+)", out_path.read_text())
            pids: dict[str, list[list[int]]] = {rank: [] for rank in "01"}
            for rank, *own in started:
                pids[rank].append([int(pid) for pid in own])
            assert soon(lambda: not any(map(is_running, pids["1"][0])), 10)
            assert all(map(is_running, [*pids["0"][0], *pids["1"][1]]))
        finally:
            (torshrun.folder / "looked").touch()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_replacement_gets_the_notice_that_came_before_it_was_started(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
        tr.init_process_group()
        nn.manual_seed(0)
        model = tr.DistributedDataParallel(nn.Linear(2, 1))
        job = tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1))
        for step in job.steps(4):
            with step:
                if rank == 1 and step.number == 2 and "TORSH_REPLACEMENT" not in os.environ:
                    os.kill(os.getpid(), signal.SIGKILL)
                while rank == 0 and step.number == 2 and not os.path.exists("noticed"):
                    time.sleep(0.01)  # so the others wait until this rank has parked
                while step.number == 3 and not got:
                    time.sleep(0.01)
                step.commit()
        print("through", rank, len(got), flush=True)
        """
    )
    events = torshrun.folder / "events"
    process = torshrun.start("--nproc-per-node=3", "--max-restarts=1", f"--events={events}", script)
    assert soon(lambda: events.exists() and "worker_exited" in events.read_text(), 60)
    process.send_signal(signal.SIGUSR1)
    assert soon(lambda: '"notice"' in events.read_text())
    (torshrun.folder / "noticed").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert sorted(re.findall(r"through .*", out)) == [f"through {rank} 1" for rank in range(3)]
    assert "replaced while the others continue" in err
