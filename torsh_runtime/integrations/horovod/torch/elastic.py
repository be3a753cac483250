"""Provides elastic training, with a state that survives the workers that torshrun restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sized
from functools import wraps
from typing import Any

import torch

from torsh_runtime.elastic.state import State
from torsh_runtime.integrations.horovod.torch.broadcasting import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from torsh_runtime.integrations.horovod.torch.world import rank, size

__all__ = ["ElasticSampler", "TorchState", "run"]


class TorchState(State):
    """Holds a model, an optimizer and any other state of a training as attributes.

    Commits are kept in the memory of torshrun's agents. Restarted workers resume from the last one:
    see tr.elastic.State.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **parts: Any) -> None:
        """Take a model, an optimizer and further parts of the state.

        parts: further models, optimizers, samplers; numbers, strings, and lists and dicts of them.
        """
        given = {"model": model, "optimizer": optimizer}
        super().__init__(
            **{name: each for name, each in given.items() if each is not None}, **parts
        )

    def save(self) -> None:
        """Call commit()."""
        self.commit()

    def check_host_updates(self) -> None:
        """Do nothing: torshrun restarts the workers by itself when nodes come or go."""

    def sync(self) -> bool:
        """Restore the last commit and return True; without one, send rank 0's state to all."""
        if self.restore():
            return True
        values: dict[str, Any] = {}
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), 0)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, 0)
            elif hasattr(part, "load_state_dict"):
                part.load_state_dict(broadcast_object(part.state_dict()))
            else:
                values[name] = part
        self._parts.update(broadcast_object(values))
        return False


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function so that its state is first made the same on all ranks.

    After workers were restarted, that state is the last commit. Start the program with `torshrun
    --max-restarts N`.
    """

    @wraps(func)
    def call(state: TorchState, *arguments: Any, **named: Any) -> Any:
        state.sync()
        return func(state, *arguments, **named)

    return call


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Distributes an epoch's unprocessed indices over the current ranks.

    Make it a part of the TorchState, call record_batch() after each batch, and set_epoch() at the
    end of each epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Take a data set. `seed` determines the order, and must be the same on all ranks."""
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start this epoch, without any processed indices."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each rank has processed batch_size more indices. batch_idx has no effect."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of processed indices."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Resume from the result of state_dict()."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Distribute the remaining indices over the current ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = [*range(len(self.dataset))]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        padded = (left + left * self.num_replicas)[: self.total_size]  # the same number for all
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
