"""Workers of scripts that know nothing of recovery: copies take the place of those killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from support.blocks import shown
from support.launcher import Launcher

from torshrun.procfs import children, read_stat

SCRIPT = str(Path(__file__).parent.parent / "support" / "unmodified.py")
STEPS = "12"
RANKS = 3
WITHIN = 280


class Outcome(NamedTuple):
    """What a job printed."""

    starts: dict[str, str]
    """Each rank's first pid."""
    pids: dict[str, str]
    """Each rank's last pid."""
    steps: frozenset[str]
    ends: frozenset[str]


def outcome(out: str) -> Outcome:
    ends = re.findall(r"end (\d+) (\d+) (.+)", out)
    return Outcome(
        dict(reversed(re.findall(r"start (\d+) (\d+)", out))),
        {rank: pid for rank, pid, _ in ends},
        # A worker may have been killed before it ended its line.
        frozenset(re.findall(r"step (?:(?!step).)+", out)),
        frozenset(f"{rank} {rest}" for rank, _, rest in ends),
    )


@cache
def undisturbed(folder: Path, steps: str) -> Outcome:
    with Launcher(folder) as torshrun:
        torshrun.share_torch()
        code, out, err = torshrun.run(
            f"--nproc-per-node={RANKS}", SCRIPT, "torsh", steps, within=WITHIN
        )
    assert code == 0, err
    return outcome(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(autouse=True)
def fast_start(torshrun: Launcher) -> None:
    torshrun.share_torch()


def launch(torshrun: Launcher, restarts: int, seconds: str = "0") -> tuple[str, ...]:
    """Return the options that protect workers, with copies at least so many seconds apart."""
    path = torshrun.folder / "job.yaml"
    path.write_text(f"environment:\n  TORSH_COPIES: '{seconds}'\n")
    return (
        f"--nproc-per-node={RANKS}",
        "--recover",
        f"--max-restarts={restarts}",
        f"--config={path}",
    )


LOSSES = {
    "within passes": ["0:2:forward", "1:4:buckets", "0:6:buckets"],
    "around passes": ["0:0:forward", "2:5:between", "2:6:step", "1:8:validation"],
    "at once": ["0:3:forward", "1:3:buckets", "2:3:between", "2:8:validation", "0:8:validation"],
}


@pytest.mark.parametrize("case", LOSSES)
@pytest.mark.parametrize("seconds", ["0", "1000"])
def test_scripts_go_on_with_the_same_bits(
    torshrun: Launcher, folder: Path, case: str, seconds: str
) -> None:
    """With a copy after each step, and with a single one of the beginning."""
    assert "--recover --max-restarts" in shown(
        "docs/recovery.md", "torshrun --nproc-per-node 4 --rec"
    )
    losses = LOSSES[case]
    options = launch(torshrun, len(losses), seconds)
    code, out, err = torshrun.run(*options, SCRIPT, "torsh", STEPS, *losses, within=WITHIN)
    assert code == 0, err
    found, expected = outcome(out), undisturbed(folder, STEPS)
    assert found.steps == expected.steps, err
    assert found.ends == expected.ends
    victims = {each[0] for each in losses}
    kept = {rank for rank in found.starts if found.starts[rank] == found.pids[rank]}
    assert kept == set(found.starts) - victims


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the workers' pids, which are those of the keeper's children."""
    keepers = [each for each in children(process.pid) if _is_keeper(each)]
    return sorted(pid for keeper in keepers for pid in children(keeper) if _runs(pid))


def _is_keeper(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.name == "torsh-keeper"


def _runs(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.state != "Z"


def killed_at_random(process: subprocess.Popen[str], times: int, random: Random) -> int:
    """Kill random workers at random moments, one at a time or two; return how many."""
    number = 0
    while number < times and process.poll() is None:
        time.sleep(random.uniform(0.0, 1.5))
        present = [each for each in workers_of(process) if children(each)]
        if len(present) < RANKS:  # what has just taken a place has no copy for a moment
            continue
        for pid in random.sample(present, random.choice([1, 1, 1, 2])):
            with suppress(ProcessLookupError):  # it was at its end
                os.kill(pid, signal.SIGKILL)
                number += 1
            time.sleep(random.choice([0.0, 0.1]))
    return number


@pytest.mark.parametrize("seconds", ["0", "1"])
def test_kills_at_any_moment(torshrun: Launcher, folder: Path, seconds: str) -> None:
    kills, steps = int(os.environ.get("KILLS", "6")), os.environ.get("STEPS", "60")
    seed = int(time.time())
    torshrun.environ["PAUSE"] = "0.1"
    path, fast = torshrun.folder / "out", torshrun.folder / "FAST"
    with path.open("w") as file:
        process = torshrun.start(
            *launch(torshrun, 2 * kills, seconds), SCRIPT, "torsh", steps, stdout=file
        )
        while "step 0" not in path.read_text() and process.poll() is None:
            time.sleep(0.05)
        number = killed_at_random(process, kills, Random(seed))
        fast.touch()
        _, err = process.communicate(timeout=WITHIN)
    print(f"seed {seed}: {number} kills")
    assert process.returncode == 0, err
    found, expected = outcome(path.read_text()), undisturbed(folder, steps)
    assert number >= kills, "the job has ended too early"
    assert found.steps == expected.steps, err
    assert found.ends == expected.ends
    assert "restarting" not in err


BODY = """
import threading
import torch
import torch.distributed as dist
dist.init_process_group("torsh")
{setup}
total = torch.zeros(())
for step in range(4):
    value = torch.tensor({value})
    dist.all_reduce(value)
    total += value
    if step == 2 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        {end}
print(f"end {{rank}} {{os.environ['TORCHELASTIC_RESTART_COUNT']}} {{total.item()}}")
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
THREAD = "threading.Thread(target=time.sleep, args=(90,), daemon=True).start()"
CHILD = "import subprocess; subprocess.Popen(['sleep', '3'])"
MESSAGES = "dist.recv(torch.ones(1), 0) if rank else dist.send(torch.ones(1), 1)"


class Unsafe(NamedTuple):
    """A script of which a loss restarts all workers."""

    said: str
    setup: str = ""
    value: str = "float(step)"
    end: str = KILL
    restarts: int = 1


UNSAFE = {
    "thread": Unsafe("is not protected: it has the thread 'Thread-1", THREAD),
    "threads of torch": Unsafe("it computes with 2 threads", "torch.set_num_threads(2)"),
    "child": Unsafe("it has the child process 'sleep'", CHILD),
    "shared memory": Unsafe(
        "it has the shared memory '/dev/shm/torch_", "own = torch.zeros(1).share_memory_()"
    ),
    "messages": Unsafe("is not protected: it sends messages", MESSAGES),
    "group": Unsafe("is not protected: it makes groups beside", "dist.new_group()"),
    "exception": Unsafe("RuntimeError: of the script", end="raise RuntimeError('of the script')"),
    "exit": Unsafe("exit code 3", end="os._exit(3)"),
    "other values": Unsafe("had another result when", value="time.time() % 100", restarts=2),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_a_loss_restarts_all_where_a_copy_would_not_do(torshrun: Launcher, case: str) -> None:
    """And the agent says why, once."""
    unsafe = UNSAFE[case]
    script = torshrun.script(BODY.format(**unsafe._asdict()))
    options = ("--nproc-per-node=2", "--recover", f"--max-restarts={unsafe.restarts}")
    code, out, err = torshrun.run(*options, script, within=WITHIN)
    assert code == 0, err
    assert unsafe.said in err
    assert err.count("is not protected") == (unsafe.setup != ""), err
    assert f"attempt {unsafe.restarts} of {unsafe.restarts + 1}: restarting" in err
    ends = re.findall(r"end (\d) (\d)", out)
    assert sorted(ends) == [("0", str(unsafe.restarts)), ("1", str(unsafe.restarts))]


def test_scripts_for_gloo_go_on_and_one_that_is_stopped_is_no_loss(torshrun: Launcher) -> None:
    wake = "os.system(f'(sleep 2; kill -CONT {os.getpid()}) &')"
    setup = f"if rank == 0: {wake}; os.kill(os.getpid(), signal.SIGSTOP)"
    body = BODY.format(setup=setup, value="float(step)", end=KILL).replace('"torsh"', '"gloo"')
    options = ("--nproc-per-node=2", "--recover", "--max-restarts=1", "--torch-backend=torsh")
    code, out, err = torshrun.run(*options, torshrun.script(body), within=WITHIN)
    assert code == 0, err
    assert sorted(re.findall(r"end (\d) \d (\S+)", out)) == [("0", "12.0"), ("1", "12.0")]
    assert err.count("failed first") == 1
    assert "its copy" in err


def test_a_copy_draws_and_reads_what_its_worker_did(torshrun: Launcher) -> None:
    """Python draws another seed in a fork, and a fork shares its parent's place in a file."""
    (torshrun.folder / "data").write_bytes(bytes(range(200)))
    setup = "import random; random.seed(rank); data = open('data', 'rb', buffering=0)"
    value = "random.random() + data.read(3)[2]"
    totals = []
    for end in ("pass", KILL):
        script = torshrun.script(BODY.format(setup=setup, value=value, end=end))
        options = ("--nproc-per-node=2", "--recover", "--max-restarts=1")
        code, out, err = torshrun.run(*options, script, within=WITHIN)
        assert code == 0, err
        assert ("its copy" in err) is (end == KILL), err
        totals.append(sorted(re.findall(r"end (\d) \d (\S+)", out)))
    assert totals[0] == totals[1]


def test_nobody_waits_for_a_rank_that_has_ended_well(torshrun: Launcher) -> None:
    body = BODY.format(setup="", value="float(step)", end="os._exit(0)")
    options = ("--nproc-per-node=2", "--recover", "--max-restarts=1")
    code, out, err = torshrun.run(*options, torshrun.script(body), within=WITHIN)
    assert code == 0, err
    assert "rank 1 was lost during all_reduce" in err
    assert sorted(re.findall(r"end (\d) (\d)", out)) == [("0", "1"), ("1", "1")]


def test_join_is_refused(torshrun: Launcher) -> None:
    script = torshrun.script("import torsh_runtime as tr; tr.elastic.join()")
    code, _, err = torshrun.run("--recover", "--max-restarts=1", script, within=WITHIN)
    assert code != 0
    assert "leave --recover out" in err
