"""Trains digits with ranks that Ray or Dask has placed.

Each step is of one global batch, so the result does not depend on the number of ranks, and each row
is counted when it is taken.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.nn import functional as F  # noqa: N812

BATCH, EPOCHS, KEEP_EVERY = 60, 5, 12
"""Rows of a batch of all ranks; number of epochs; steps between two checkpoints."""
_HOLD_SECONDS = 240.0


@dataclass(frozen=True)
class Disturbance:
    """Describes the disturbances of a training."""

    folder: str
    """Folder for notes of what has happened."""
    kill_at: int | None = None
    """Step in which the last rank kills itself, once."""
    hold_at: int | None = None
    """Step that waits for hold_for ranks."""
    hold_for: int = 0

    def strike(self, step: int) -> None:
        """Carry out the disturbances of this step."""
        killed = Path(self.folder, "killed")
        is_last = tr.get_rank() == tr.get_world_size() - 1
        if step == self.kill_at and is_last and not killed.exists():
            killed.write_text(f"{tr.get_world_size()}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        end = time.monotonic() + _HOLD_SECONDS
        while step == self.hold_at and tr.get_world_size() < self.hold_for:
            Path(self.folder, "holding").touch()
            if time.monotonic() > end:
                raise TimeoutError(f"{self.hold_for} ranks did not come")
            time.sleep(0.05)
            tr.barrier()

    def note_start(self, step: int) -> None:
        """Record that ranks start at this step."""
        if tr.get_rank() == 0:
            with Path(self.folder, "starts").open("a") as file:
                file.write(f"{tr.get_world_size()} {step}\n")

    def starts(self) -> list[tuple[int, int]]:
        """Return the number of ranks and the first step of each start, in order."""
        lines = Path(self.folder, "starts").read_text().splitlines()
        return [(int(ranks), int(step)) for ranks, step in (line.split() for line in lines)]


class Keeper(Protocol):
    """Describes a storage of a training's state."""

    def load(self) -> dict[str, Any] | None:
        """Return the latest state, or None."""

    def keep(self, state: dict[str, Any], metrics: dict[str, float]) -> None:
        """Store the state. All ranks call this."""


class RayReports:
    """Keeps checkpoints by ray.train.report()."""

    def load(self) -> dict[str, Any] | None:
        import ray.train

        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return None
        with checkpoint.as_directory() as folder:
            state: dict[str, Any] = pickle.loads(Path(folder, "state").read_bytes())  # noqa: S301
            return state

    def keep(self, state: dict[str, Any], metrics: dict[str, float]) -> None:
        import ray.train

        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if tr.get_rank() == 0:
                Path(folder, "state").write_bytes(pickle.dumps(state))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


class Checkpoints:
    """Keeps torsh's checkpoints, in a folder that all ranks can access."""

    def __init__(self, folder: str) -> None:
        self._checkpointer = tr.checkpoint.Checkpointer(folder)

    def load(self) -> dict[str, Any] | None:
        loaded = self._checkpointer.load()
        if loaded is None:
            return None
        state: dict[str, Any] = loaded.values["state"]
        return state

    def keep(self, state: dict[str, Any], metrics: dict[str, float]) -> None:
        self._checkpointer.save(state["step"], {"state": state})


def by_ray(config: dict[str, Disturbance]) -> None:
    """Train in one of Ray's workers."""
    train(RayReports(), config["disturbance"])


def by_dask(folder: str, disturbance: Disturbance) -> dict[str, float]:
    """Train in one of Dask's workers."""
    return train(Checkpoints(folder), disturbance)


def train(keeper: Keeper, disturbance: Disturbance) -> dict[str, float]:
    """Train from the stored state to the end, and return the results."""
    inputs, targets = _digits()
    rows, held_out = inputs[:-360], slice(-360, None)
    nn.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = tr.DistributedDataParallel(layers)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = tr.elastic.ElasticSampler(len(rows), BATCH)
    taken, step = np.zeros(len(rows), np.int64), 0
    if kept := keeper.load():
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        sampler.load_state_dict(kept["sampler"])
        taken, step = np.array(kept["taken"]), int(kept["step"])
    disturbance.note_start(step)

    def metrics() -> dict[str, float]:
        with nn.no_grad():
            scores = layers(nn.from_numpy(inputs[held_out])).numpy()
        accuracy = float((scores.argmax(axis=1) == targets[held_out]).mean())
        return {"accuracy": accuracy, "least": int(taken.min()), "most": int(taken.max())}

    while sampler.epoch < EPOCHS:
        for indices in sampler:
            size = min(BATCH, len(rows) - (sampler.num_taken - 1) * BATCH)
            _step(model, optimizer, (inputs[indices], targets[indices]), size)
            taken += _of_all(indices, len(rows))
            step += 1
            disturbance.strike(step)
            is_end = sampler.num_taken == len(sampler)
            if step % KEEP_EVERY == 0 and not is_end:
                keeper.keep(_state(model, optimizer, sampler, taken, step), metrics())
        keeper.keep(_state(model, optimizer, sampler, taken, step), metrics())
    return metrics()


def _step(model: Any, optimizer: Any, batch: tuple[np.ndarray, np.ndarray], size: int) -> None:
    scores = model(nn.from_numpy(batch[0]))
    loss = F.cross_entropy(scores, nn.from_numpy(batch[1]), reduction="sum")
    optimizer.zero_grad()
    (loss * (tr.get_world_size() / size)).backward()  # gradients are averaged over the ranks
    optimizer.step()


def _of_all(indices: list[int], length: int) -> np.ndarray:
    """Return how often all ranks have taken each row in this step."""
    taken = np.zeros(length, np.int64)
    taken[indices] = 1
    tr.all_reduce(taken)
    return taken


def _state(model: Any, optimizer: Any, sampler: Any, taken: Any, step: int) -> dict[str, Any]:
    return {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "sampler": sampler.state_dict(),
        "taken": taken.copy(),
        "step": step,
    }


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    load: Callable[..., Any] = load_digits
    images, digits = load(return_X_y=True)
    return (images / 16).astype(np.float32), digits
