"""Selects the samples of a dataset that are this rank's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.groups import get_rank, get_world_size
from torsh_runtime.errors import ConfigError


class DistributedSampler:
    """Selects the indices of a dataset for this rank, as torch's class of this name.

    torch's DataLoader takes it, and it needs no torch. In each epoch every sample is some rank's,
    and all ranks have equally many: the last ones are filled up from the first, or left out with
    `drop_last`.

    Its position can be saved: a sample counts as taken when it has been given out. Some loaders ask
    for samples before the program takes them. torchdata's StatefulDataLoader knows how many were
    taken, and is saved in place of the sampler; with others pass their number to state_dict().

    Example:
        ```python
        sampler = tr.DistributedSampler(dataset, seed=1)
        loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            train(loader)
        ```
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Create the sampler.

        Args:
            dataset: The dataset's length, or an object that has one.
            num_replicas: The number of ranks; None is the default group's.
            rank: This rank; None is that in the default group.
            shuffle: Whether to shuffle the samples in each epoch.
            seed: The seed of the order, equal on all ranks.
            drop_last: Whether to leave out the last samples instead of repeating the first.

        Raises:
            ConfigError: For a rank that is not below `num_replicas`, and without a default group if
                one of them is None.
        """
        self._length = dataset if isinstance(dataset, int) else len(dataset)
        self.num_replicas = get_world_size() if num_replicas is None else num_replicas
        self.rank = get_rank() if rank is None else rank
        if self.rank not in range(self.num_replicas):
            raise ConfigError(f"rank {self.rank} is none of {self.num_replicas} ranks, from 0")
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = self._start = self._taken = 0
        self._is_over = self._was_over = self._is_ahead = False

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch's order, and begin at its first sample.

        In the epoch that was loaded, continue from its position.

        Args:
            epoch: The epoch's number.

        Example:
            ```python
            for epoch in range(epochs):
                sampler.set_epoch(epoch)
                train(loader)
            ```
        """
        if epoch != self.epoch:
            self._stand(epoch, 0)
        elif self._was_over:
            self._stand(epoch, len(self))

    def __len__(self) -> int:
        """Return the number of samples that this rank has in an epoch."""
        whole, rest = divmod(self._length, self.num_replicas)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[int]:
        start = self._start
        self._stand(self.epoch, start)
        self._start = 0
        return self._counted(self._own().tolist(), start)

    def _stand(self, epoch: int, taken: int) -> None:
        """Let the next iteration begin at this position."""
        self.epoch, self._start, self._taken = epoch, taken, taken
        self._is_over = self._was_over = self._is_ahead = False

    def _counted(self, own: list[int], start: int) -> Iterator[int]:
        self._is_ahead = _is_asked_ahead()
        for number in range(start, len(own)):
            self._taken = number + 1
            yield own[number]
        self._is_over = True

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return the state after the program has taken `taken` samples of the epoch on each rank.

        Args:
            taken: The number of samples; None is those that were given out.

        Raises:
            ConfigError: For None within an epoch that a DataLoader with workers asks for.

        Example:
            ```python
            state = sampler.state_dict(taken=steps * batch_size)
            ```
        """
        if taken is None and self._is_ahead and not self._is_over:
            raise ConfigError(
                "the sampler gives samples to a DataLoader with workers, which asks ahead, and "
                "cannot know how many of them the program has taken: keep torchdata's "
                "StatefulDataLoader in place of the sampler, or what state_dict(taken=...) gives"
            )
        is_over = taken is None and self._is_over
        where = {"epoch": self.epoch, "taken": self._taken if taken is None else taken}
        return {**where, "is_over": is_over, "num_replicas": self.num_replicas, **self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state with the next iteration.

        After an epoch that is over, resume with the next one, which set_epoch() may have named
        before.

        Args:
            state: What state_dict() returned.

        Raises:
            ConfigError: Within an epoch of a different number of ranks, whose shares were
                different, or of a dataset of a different length or order.

        Example:
            ```python
            sampler.load_state_dict(state)
            for epoch in range(sampler.epoch, epochs):
                sampler.set_epoch(epoch)
                train(loader)
            ```
        """
        epoch, taken, is_over = state["epoch"], state["taken"], state.get("is_over", False)
        saved = state.get("num_replicas", self.num_replicas)
        if taken and not is_over:
            self._check(saved, {key: state.get(key, own) for key, own in self._order().items()})
        self.seed = state["seed"]
        if self.epoch <= epoch or not (is_over or taken >= len(self)):
            self._stand(epoch, 0 if is_over else taken)
            self._taken, self._is_over, self._was_over = taken, is_over, is_over

    def _order(self) -> dict[str, Any]:
        """Return what the shares follow from, besides the number of ranks."""
        own = {"length": self._length, "shuffle": self.shuffle, "drop_last": self.drop_last}
        return {"seed": self.seed, **own}

    def _check(self, num_replicas: int, order: dict[str, Any]) -> None:
        if num_replicas != self.num_replicas:
            raise ConfigError(
                f"the sampler stands within an epoch of {num_replicas} ranks, and there are "
                f"{self.num_replicas}: begin the epoch anew (taken=0), or use "
                f"tr.elastic.ElasticSampler, which goes on with any number"
            )
        own = self._order() | {"seed": order["seed"]}
        if order != own:
            raise ConfigError(
                f"the sampler stands within an epoch of another dataset or order, {order}, and "
                f"this one is {own}: make the sampler as it was, or begin the epoch anew (taken=0)"
            )

    def _own(self) -> NDArray[np.int64]:
        order = np.arange(self._length)
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(order)
        total = len(self) * self.num_replicas
        order = np.resize(order, total) if self._length else order
        return order[self.rank : total : self.num_replicas]


def _is_asked_ahead() -> bool:
    """Return whether a DataLoader with workers asks, so that it is unknown how much was taken."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_try_put_index":
            return bool(frame.f_globals.get("__name__") == "torch.utils.data.dataloader")
    return False
