"""Reinforcement learning with samplers beside the trainer: a pole is to be balanced on a cart.

    torshrun --nproc-per-node 4 --max-restarts 100 examples/rollouts.py

Rank 0 trains and publishes its weights, the last ranks sample episodes with the newest of them, and
rank 1 controls: an asyncio program that awaits calls. Kill a sampler: torshrun starts the workers
again, and the trainer goes on from its last checkpoint. Needs nothing but numpy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import torsh_runtime as tr

TRAINER, CONTROLLER, SAMPLER = "trainer", "controller", "sampler{}"
CHECKPOINT_EVERY = REPORT_EVERY = 10
LONGEST = 200
"""Steps of an episode."""
FORCE, GRAVITY, CART, POLE, HALF, TICK = 10.0, 9.8, 1.0, 0.1, 0.5, 0.02
LEANS, LEAVES = 0.21, 2.4
"""Where an episode ends: the pole's angle and the cart's place."""


class Episode(NamedTuple):
    """One attempt: the states, and the pushes that were chosen there (1: to the right)."""

    states: np.ndarray
    pushes: np.ndarray
    version: int
    """Of the weights that chose."""


def step(state: np.ndarray, push: int) -> np.ndarray:
    """The cart and its pole a tick later: place, speed, angle, turn."""
    _, speed, angle, turn = state
    sine, cosine, mass = np.sin(angle), np.cos(angle), CART + POLE
    pushed = ((2 * push - 1) * FORCE + POLE * HALF * turn**2 * sine) / mass
    turning = (GRAVITY * sine - cosine * pushed) / (HALF * (4 / 3 - POLE * cosine**2 / mass))
    moving = pushed - POLE * HALF * turning * cosine / mass
    return state + TICK * np.array([speed, moving, turn, turning])


def odds_of_right(weights: np.ndarray, states: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-(states @ weights)))


class Sampler:
    """Plays episodes with the newest weights. Lives on a sampler."""

    def __init__(self, seed: int, dies_after: int | None) -> None:
        self.random = np.random.default_rng(seed)
        self.policy = tr.rpc.subscribe("policy")
        self.calls, self.dies_after = 0, dies_after

    def sample(self, count: int) -> list[Episode]:
        self.calls += 1
        if self.calls == self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.policy.latest() as newest:
            return [self._play(newest["weights"], newest.version) for _ in range(count)]

    def _play(self, weights: np.ndarray, version: int) -> Episode:
        state = self.random.uniform(-0.05, 0.05, 4)
        states, pushes = [], []
        while len(states) < LONGEST and abs(state[0]) < LEAVES and abs(state[2]) < LEANS:
            push = int(self.random.random() < odds_of_right(weights, state))
            states.append(state)
            pushes.append(push)
            state = step(state, push)
        return Episode(np.array(states), np.array(pushes), version)


class Trainer:
    """The weights, and how episodes change them (REINFORCE). Lives on the trainer."""

    def __init__(self, checkpoint: Path, lr: float) -> None:
        self.checkpoint, self.lr = checkpoint, lr
        self.updates, self.weights = 0, np.zeros(4)
        self._lock = threading.Lock()
        if checkpoint.exists():
            with np.load(checkpoint) as file:
                self.updates, self.weights = int(file["updates"]), file["weights"]
            print(f"resuming from {checkpoint} after update {self.updates}", flush=True)
        self.version = tr.rpc.publish("policy", {"weights": self.weights})

    def learn(self, episodes: Sequence[Episode]) -> tuple[int, float, int]:
        """One update; how many there were, the mean length of the episodes, and how many updates
        the weights that they were played with were old."""
        with self._lock:
            states = np.concatenate([each.states for each in episodes])
            pushes = np.concatenate([each.pushes for each in episodes])
            returns = np.concatenate([np.arange(len(each.pushes), 0.0, -1) for each in episodes])
            advantages = (returns - returns.mean()) / (returns.std() + 1e-8)
            surprise = pushes - odds_of_right(self.weights, states)
            self.weights = self.weights + self.lr * (surprise * advantages) @ states / len(states)
            self.updates += 1
            age = self.version - min(each.version for each in episodes)
            self.version = tr.rpc.publish("policy", {"weights": self.weights})
            self._save()
        return self.updates, float(np.mean([len(each.pushes) for each in episodes])), age

    def _save(self) -> None:
        """Write a checkpoint so that at any moment the old or the new one is there, whole."""
        if self.updates % CHECKPOINT_EVERY:
            return
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoint.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, updates=self.updates, weights=self.weights)
        partial.replace(self.checkpoint)


class Controller:
    """Has samplers sample and the trainer learn, until the pole stays up."""

    def __init__(self, options: argparse.Namespace, samplers: int) -> None:
        self.options = options
        self.trainer = tr.rpc.remote(TRAINER, Trainer, args=(options.checkpoint, options.lr))
        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        dies_after = None if restarts else options.lose_after
        self.samplers = [
            tr.rpc.remote(
                SAMPLER.format(number), Sampler, args=(100 * restarts + number, dies_after)
            )
            for number in range(samplers)
        ]
        self.last: deque[float] = deque(maxlen=10)

    async def run(self) -> None:
        """All samplers at once, each at its own pace."""
        async with asyncio.TaskGroup() as tasks:
            for sampler in self.samplers:
                tasks.create_task(self._keep_busy(sampler))
        print(f"the pole stays up for {np.mean(self.last):.0f} steps", flush=True)

    async def _keep_busy(self, sampler: Any) -> None:
        while len(self.last) < 10 or np.mean(self.last) < self.options.steps:
            episodes = await sampler.rpc_async().sample(self.options.episodes)
            updates, steps, age = await self.trainer.rpc_async().learn(episodes)
            self.last.append(steps)
            if updates % REPORT_EVERY == 0:
                print(f"update {updates:4}  {steps:5.1f} steps  weights {age} updates old")


def main() -> None:
    options = parse_arguments()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks < 3:
        raise SystemExit("start a trainer, a controller and samplers: torshrun --nproc-per-node 4")
    names = [TRAINER, CONTROLLER, *(SAMPLER.format(number) for number in range(ranks - 2))]
    tr.rpc.init_rpc(names[rank], rank=rank, world_size=ranks)
    if names[rank] == CONTROLLER:
        asyncio.run(Controller(options, ranks - 2).run())
        options.checkpoint.unlink(missing_ok=True)
    tr.rpc.shutdown(timeout=0)  # the others serve until the controller is done


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--steps", type=float, default=190, help=f"for which the pole stays up; at most {LONGEST}")
    add("--episodes", type=int, default=8, help="of each update")
    add("--lr", type=float, default=20.0)
    add("--lose-after", type=int, metavar="N", help="samplers die at their Nth call, once each")
    add("--checkpoint", type=Path, default=Path("checkpoints/rollouts.npz"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
