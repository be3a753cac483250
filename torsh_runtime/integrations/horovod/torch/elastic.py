"""Elastic training: a state that outlives workers, which torshrun starts again."""

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
    """The state of a training: a model, an optimizer, and whatever else, as attributes.

    Commits lie in memory of torshrun's agents, and workers that are started again go on from the
    last one: see tr.elastic.State.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **parts: Any) -> None:
        """parts: further models, optimizers, samplers; numbers, texts, and lists and dicts of
        them."""
        given = {"model": model, "optimizer": optimizer}
        super().__init__(
            **{name: each for name, each in given.items() if each is not None}, **parts
        )

    def save(self) -> None:
        """The same as commit()."""
        self.commit()

    def check_host_updates(self) -> None:
        """Nothing: when nodes come or go torshrun starts the workers again by itself."""

    def sync(self) -> bool:
        """Go back to the last commit; without one, give all ranks what rank 0 has."""
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
    """The function, called with a state that is the same on all ranks: that of the last commit if
    workers have been started again. Start the program with `torshrun --max-restarts N`."""

    @wraps(func)
    def call(state: TorchState, *arguments: Any, **named: Any) -> Any:
        state.sync()
        return func(state, *arguments, **named)

    return call


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares an epoch's indices out to the ranks there are, without those recorded as processed.

    Make it a part of the TorchState, call record_batch() after each batch, and set_epoch() at the
    end of each epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """seed: of the order, the same on all ranks."""
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Each rank has processed batch_size indices more. batch_idx: makes no difference."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Share what is left out anew."""
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
