"""Workers of scripts that know nothing of recovery: copies take the place of those killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
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
        frozenset(re.findall(r"step .+", out)),
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
    "at once": ["0:3:forward", "1:3:buckets", "2:8:validation", "0:8:validation"],
}


@pytest.mark.parametrize("case", LOSSES)
@pytest.mark.parametrize("seconds", ["0", "1000"])
def test_scripts_go_on_with_the_same_bits(
    torshrun: Launcher, folder: Path, case: str, seconds: str
) -> None:
    """With a copy after each step, and with a single one of the beginning."""
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
        present = workers_of(process)
        if len(present) < RANKS:
            continue
        for pid in random.sample(present, random.choice([1, 1, 1, 2])):
            os.kill(pid, signal.SIGKILL)
            number += 1
            time.sleep(random.choice([0.0, 0.1]))
    return number


@pytest.mark.parametrize("seconds", ["0", "1"])
def test_kills_at_any_moment(torshrun: Launcher, folder: Path, seconds: str) -> None:
    kills, steps = int(os.environ.get("KILLS", "6")), os.environ.get("STEPS", "150")
    seed = int(time.time())
    path = torshrun.folder / "out"
    with path.open("w") as file:
        process = torshrun.start(
            *launch(torshrun, 2 * kills, seconds), SCRIPT, "torsh", steps, stdout=file
        )
        while "step 0" not in path.read_text() and process.poll() is None:
            time.sleep(0.05)
        number = killed_at_random(process, kills, Random(seed))
        _, err = process.communicate(timeout=WITHIN)
    print(f"seed {seed}: {number} kills")
    assert process.returncode == 0, err
    found, expected = outcome(path.read_text()), undisturbed(folder, steps)
    assert number >= kills, "the job has ended too early"
    assert found.steps == expected.steps, err
    assert found.ends == expected.ends
    assert "starts" not in err
