"""Measures the training of `benchmarks/recovery.py` as a script under torshrun --recover."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil

from benchmarks.processes import RunError, wait_until
from benchmarks.recovery_jobs import FIRST, PATIENCE, SETTLE, Figures, Training

SCRIPT = str(Path(__file__).with_name("recovery_copies.py"))


def copied(folder: Path, workers: int, kills: int, width: int) -> Figures:
    """Kill workers at random moments, and return what that costs.

    net: without one step, and without the time in which the copy repeated steps.
    """
    command = [sys.executable, "-m", "torshrun", f"--nproc-per-node={workers}", "--recover"]
    command += [f"--max-restarts={kills}", SCRIPT, str(width)]
    waits, nets, holds = [], [], []
    with Training(folder, workers).start([command], {}) as training:
        training.wait("steps", workers, steps=FIRST)
        time.sleep(SETTLE)
        step = training.step()
        for _ in range(kills):
            time.sleep(SETTLE + random.random() * step)
            killed = time.monotonic()
            os.kill(random.choice(_workers(training)), signal.SIGKILL)
            wait, repeating = _again(training, workers, killed, step)
            waits.append(wait)
            nets.append(wait - step - repeating)
            holds.append(training.hold(killed, killed + wait) - step)
    return Figures(waits, nets, holds, step)


def _workers(training: Training) -> list[int]:
    """Return the pids of the workers, which are those of the keeper's children."""
    everyone = psutil.Process(training.pid).children(recursive=True)
    keeper = next(each for each in everyone if each.name() == "torsh-keeper")
    return [each.pid for each in keeper.children()]


def _again(training: Training, workers: int, killed: float, step: float) -> tuple[float, float]:
    """Return the seconds until all ranks had committed a step that none had before, and those in
    which the copy of the lost one repeated steps: they take less time than others, as the peers
    only communicate."""
    after = max(training.commits()) + 1
    if not wait_until(lambda: len(training.commits().get(after, ())) >= workers, PATIENCE, 0.05):
        raise RunError(f"no step after a kill: {training.said()[-2000:]}")
    commits = training.commits()
    repeated = sorted(at for each in commits.values() for at in each[workers:] if at > killed)
    repeating = step * len(repeated)
    if len(repeated) > 1:
        repeating = (repeated[-1] - repeated[0]) * len(repeated) / (len(repeated) - 1)
    return max(commits[after][:workers]) - killed, repeating
