"""The examples of remote calls, with workers that die amid them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT = 300
"""Seconds after which an example hangs, however busy the machine is."""


def torshrun(folder: Path, *arguments: str) -> str:
    """What the job wrote; it must have ended well."""
    command = [sys.executable, "-m", "torshrun", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_parameter_server_trains_with_trainers_that_die_and_others_that_join(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sklearn")
    script = str(EXAMPLES / "parameter_server.py")
    options = "--trainers", "2", "--updates", "300", "--lose-after", "20"
    out = torshrun(tmp_path, script, *options)
    lost = re.findall(r"(trainer\d) was lost: ", out)
    assert lost, "without a second trainer of a name there are 40 updates"
    for trainer in lost:
        assert len(set(re.findall(rf"{trainer} is process (\d+)", out))) == 2
    end = re.search(r"(\d+) updates: (.*); (\d) trainers were lost", out)
    assert end is not None, out
    assert int(end[3]) == len(lost)
    assert int(end[1]) == sum(map(int, re.findall(r"trainer\d (\d+)", end[2]))) >= 300
    accuracy = re.search(r"test accuracy (\d+\.\d+)%", out)
    assert accuracy is not None, out
    assert float(accuracy[1]) > 70


def test_rollouts_go_on_from_the_trainers_checkpoint_when_samplers_die(tmp_path: Path) -> None:
    launch = "--nproc-per-node", "4", "--max-restarts", "3", "--restart-backoff", "0"
    script = str(EXAMPLES / "rollouts.py")
    out = torshrun(tmp_path, *launch, script, "--lose-after", "11", "--steps", "150")
    resumed = re.search(r"resuming from checkpoints/rollouts.npz after update (\d+)", out)
    assert resumed is not None, out
    assert int(resumed[1]) >= 10
    assert re.search(r"the pole stays up for [12]\d\d steps", out), out
    assert not (tmp_path / "checkpoints/rollouts.npz").exists()
