"""torchdata's loaders of one rank, which stop within an epoch and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.commits import Commits

SAMPLES, EPOCHS = 48, 3


class Loading:
    """A loader, and what belongs to it in a state."""

    def __init__(self, kind: str, workers: int, rank: int, ranks: int) -> None:
        options: dict[str, Any] = {"batch_size": 12 // ranks}
        self.sampler: Any = None
        if kind == "elastic":
            self.sampler = tr.elastic.ElasticSampler(SAMPLES, 12)
            options = {"batch_sampler": self.sampler.ahead()}
        elif kind == "torsh":
            options["sampler"] = self.sampler = tr.DistributedSampler(SAMPLES)
        elif kind == "torch":
            sampler = torch.utils.data.DistributedSampler(range(SAMPLES), ranks, rank)
            options["sampler"] = self.sampler = sampler
        else:
            options["shuffle"] = True  # by a generator of each rank's own
        self._kind = kind
        self.loader: Any = StatefulDataLoader(range(SAMPLES), num_workers=workers, **options)
        self.state = {"loader": self.loader}
        if kind == "elastic":
            self.state["sampler"] = self.sampler

    def epoch(self, epoch: int, most: int = SAMPLES) -> list[list[int]]:
        """So many batches of it."""
        if self._kind in ("torsh", "torch"):
            self.sampler.set_epoch(epoch)
        batches = iter(self.loader)
        if self._kind == "elastic":
            batches = self.sampler.counted(batches)
        taken: list[list[int]] = []
        while len(taken) < most and (batch := next(batches, None)) is not None:
            taken.append(batch.tolist())
        self._batches = batches
        return taken

    def left(self) -> list[list[int]]:
        """The batches of the epoch that has begun that are not taken yet."""
        return [batch.tolist() for batch in self._batches]


def go_on(
    kind: str, workers: int, rank: int, ranks: int, directory: Path, memory: dict[str, str]
) -> dict[str, Any]:
    """What is left of an epoch, and the next one: by the loader that goes on, by one that loads a
    checkpoint, by one that restores a commit; and by the former at the end of an epoch."""
    first = Loading(kind, workers, rank, ranks)
    first.epoch(0)
    first.epoch(1, most=2)
    commits = Commits(Ranks.of(None), memory)
    Checkpointer(directory / "within").save(1, first.state)
    commits.commit(first.state)
    found = {"within": [first.left()]}
    Checkpointer(directory / "behind").save(2, first.state)
    found["behind"] = [first.epoch(2)]
    found["within"] += found["behind"]
    for source in ("checkpoint", "commit"):
        other = Loading(kind, workers, rank, ranks)
        if source == "checkpoint":
            Checkpointer(directory / "within").load(other.state)
        else:
            assert commits.restore(other.state) is not None
        found[source] = [other.epoch(1), other.epoch(2)]
    behind = Loading(kind, workers, rank, ranks)
    Checkpointer(directory / "behind").load(behind.state)
    found["checkpoint behind"] = [behind.epoch(2)]
    return found


def load_elsewhere(kind: str, rank: int, ranks: int, directory: Path) -> tuple[str, Any]:
    """Why load() refuses within an epoch, or what is left then; and what comes behind an epoch."""
    behind = Loading(kind, 0, rank, ranks)
    Checkpointer(directory / "behind").load(behind.state)
    after = behind.epoch(2)
    within = Loading(kind, 0, rank, ranks)
    try:
        Checkpointer(directory / "within").load(within.state)
    except tr.CheckpointError as error:
        return str(error), after
    return "", within.epoch(1) + after


def sampler_alone(rank: int, ranks: int, directory: Path, start: int) -> tuple[str, list[int]]:
    """Why a sampler of torchdata's that took `start` samples is refused, or what it gives then; 0
    is one that loads."""
    sampler = StatefulDistributedSampler(range(SAMPLES), ranks, rank)
    state = {"sampler": sampler}
    if start:
        samples = iter(sampler)
        for _ in range(start):
            next(samples)
        Checkpointer(directory).save(1, state)
        return "", list(samples)
    try:
        Checkpointer(directory).load(state)
    except tr.CheckpointError as error:
        return str(error), []
    return "", list(sampler)
