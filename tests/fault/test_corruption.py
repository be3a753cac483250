"""Bits that flip in the state of one of several ranks: found at the next check, and healed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.launcher import Launcher

SCRIPT = str(Path(__file__).parent.parent / "support" / "corrupting.py")


class Run(NamedTuple):
    """What became of a job: what flipped, what was found, and the states at the end."""

    code: int
    flipped: list[dict[str, Any]]
    found: list[dict[str, Any]]
    ends: set[str]
    err: str


def run(torshrun: Launcher, way: str, flips: int, ranks: int = 3, within: float = 100) -> Run:
    events = torshrun.folder / "events"
    events.unlink(missing_ok=True)
    launch = (f"--nproc-per-node={ranks}", "--max-restarts=1", f"--events={events}")
    code, out, err = torshrun.run(*launch, SCRIPT, way, str(flips), "7", within=within)
    flipped = [
        {
            "kind": kind,
            "step": int(step),
            "ranks": [int(rank)],
            "odd": json.loads(odd),
            "part": part,
        }
        for kind, step, rank, odd, part in re.findall(
            r"flipped (\S+) (\d+) (\d+) (\[.*?\]) (.*)", out
        )
    ]
    told = map(json.loads, events.read_text().splitlines())
    found = [each for each in told if each["event"] == "state_corrupted"]
    ends = set(re.findall(r"end \d+ \d+ (\d+ \S+)", out))
    return Run(code, sorted(flipped, key=lambda each: each["step"]), found, ends, err)


@pytest.fixture(autouse=True)
def no_cache_in_tmp(torshrun: Launcher) -> None:
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")


@pytest.mark.parametrize("way", ["nn", "torch"])
def test_each_flipped_bit_is_found_at_the_next_check(
    torshrun: Launcher, way: str, pytestconfig: pytest.Config
) -> None:
    flips = 1200 if pytestconfig.getoption("--soak") else 24
    torshrun.environ["FAULT"] = "none"
    undisturbed = run(torshrun, way, flips, within=500)
    assert undisturbed.code == 0, undisturbed.err
    assert not undisturbed.found
    del torshrun.environ["FAULT"]
    job = run(torshrun, way, flips, within=500)
    assert job.code == 0, job.err
    assert len(job.flipped) == flips + 1
    assert {each["kind"] for each in job.flipped} == {"parameter", "moment", "gradient", "sampler"}
    effective = [each for each in job.flipped if each["odd"]]
    # A bit of a gradient may be lost when the optimizer rounds: then nothing differs.
    assert {each["kind"] for each in job.flipped if not each["odd"]} <= {"gradient"}
    assert all(each["odd"] == each["ranks"] for each in effective)
    assert len(effective) >= 5 * flips / 6
    found = [(each["step"], each["ranks"]) for each in job.found]
    assert found == [(each["step"], each["ranks"]) for each in effective]
    for flip, finding in zip(effective, job.found, strict=True):
        assert flip["part"] in ("", finding["part"])
        assert finding["sequel"] == "healed"
    assert job.ends == undisturbed.ends  # steps that began with flipped bits were repeated
    assert [bool(each["suspects"]) for each in job.found] == [False] + [True] * (len(found) - 1)
    assert "is suspect, with 2 times" in job.err


def test_without_a_majority_the_training_ends(torshrun: Launcher) -> None:
    torshrun.environ["FAULT"] = "half"
    job = run(torshrun, "nn", 6, ranks=2)
    assert job.code == 79, job.err
    (first, _) = job.found
    assert (first["step"], first["ranks"], first["sequel"]) == (4, [0, 1], "ended")
    assert first["part"].startswith("model/")
    assert "and no majority has the same" in job.err
    assert "resume from a checkpoint of before" in job.err


def test_a_corrupt_state_ends_the_training_if_asked_to(torshrun: Launcher) -> None:
    torshrun.environ |= {"FAULT": "half", "ON_CORRUPTION": "end"}
    job = run(torshrun, "nn", 6)
    assert job.code == 79, job.err
    assert [(each["ranks"], each["sequel"]) for each in job.found] == [([1], "ended")] * 2
    assert "StateCorrupted: rank 1 (host" in job.err
    assert "resume from a checkpoint of before" in job.err


def test_a_state_that_is_corrupt_whenever_it_is_healed_ends_the_training(
    torshrun: Launcher,
) -> None:
    torshrun.environ["FAULT"] = "twice"
    job = run(torshrun, "nn", 6)
    assert job.code == 79, job.err
    assert [each["sequel"] for each in job.found] == ["healed", "healed", "ended"] * 2
    assert {each["step"] for each in job.found} == {4}


def test_a_flipped_bit_is_healed_if_a_worker_is_lost_before_the_check(torshrun: Launcher) -> None:
    torshrun.environ["FAULT"] = "none"
    undisturbed = run(torshrun, "nn", 2, ranks=4)
    torshrun.environ["FAULT"] = "lost"
    job = run(torshrun, "nn", 2, ranks=4)
    assert job.code == 0, job.err
    (found,) = job.found
    assert (found["step"], found["ranks"], found["sequel"]) == (3, [1], "healed")
    assert found["part"].startswith("model/")
    assert job.ends == undisturbed.ends
    assert "replaced while the others continue" in job.err
