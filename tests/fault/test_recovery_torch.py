"""Workers of torch.distributed that are lost while the others continue, with torch's DDP."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from support.launcher import Launcher

SCRIPT = str(Path(__file__).parent.parent / "support" / "recovering_replicas.py")
STEPS = "12"
LAUNCH = ("--nproc-per-node=2", "--preload=torch._dynamo")


class Outcome(NamedTuple):
    """What a job printed."""

    starts: list[tuple[str, str]]
    """Each process's rank and pid, in order."""
    steps: set[str]
    ends: set[str]


def outcome(out: str) -> Outcome:
    return Outcome(
        re.findall(r"start (\d+) (\d+) \d+", out),
        set(re.findall(r"step .+", out)),
        set(re.findall(r"end .+", out)),
    )


@cache
def undisturbed(folder: Path) -> Outcome:
    with Launcher(folder) as torshrun:
        torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        code, out, err = torshrun.run(*LAUNCH, SCRIPT, STEPS, within=200)
    assert code == 0, err
    return outcome(out)


@pytest.fixture(autouse=True)
def no_cache_in_tmp(torshrun: Launcher) -> None:
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


LOSSES = {
    "within passes": ["kill:buckets:2:1", "kill:inner:4:0", "raise:forward:6:1"],
    "around passes": ["kill:between:2:0", "kill:own:4:1", "raise:buckets:6:0"],
    "in commits": ["kill:vote:2:1", "kill:half:4:0", "kill:committed:6:1", "kill:inner:7:1"],
}


@pytest.mark.parametrize("case", LOSSES)
def test_torchs_replicas_go_on_with_the_same_bits(
    torshrun: Launcher, folder: Path, case: str
) -> None:
    losses = LOSSES[case]
    launch = (*LAUNCH, f"--max-restarts={len(losses)}")
    code, out, err = torshrun.run(*launch, SCRIPT, STEPS, *losses, within=200)
    assert code == 0, err
    found, expected = outcome(out), undisturbed(folder)
    assert found.steps <= expected.steps, err
    lost = expected.steps - found.steps  # a rank that dies behind the vote does not tell of it
    assert len(lost) <= len(losses)
    assert found.ends == expected.ends
    victims = [each.rpartition(":")[2] for each in losses]
    assert sorted(rank for rank, _ in found.starts) == sorted(["0", "1", *victims])
    assert err.count("replaced while the others continue") == len(losses), err
