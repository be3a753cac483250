"""Which samples are this rank's, when ranks come and go within an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import numpy as np

from torsh_runtime.comm.groups import get_rank, get_world_size
from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import even_cuts

T = TypeVar("T")


class ElasticSampler:
    """Batches of a dataset's indices. A batch is the same however many ranks share it, so each
    sample is taken exactly once in an epoch, whatever happens to ranks in it.

        while sampler.epoch < epochs:
            for indices in sampler:  # this rank's part of each batch that is left in the epoch
                ...
                state.commit()

    What has been given out counts as taken; after the last batch the next epoch begins. With
    torch's DataLoader, which asks ahead: DataLoader(data, batch_sampler=sampler.ahead()), and
    `for batch in sampler.counted(loader)`.
    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        """dataset: its length is taken, or is this number. batch_size: of all ranks together; a
        multiple of every number of ranks, if gradients are averaged over ranks.
        drop_last: leave out the last batch of an epoch if it is smaller.
        num_replicas, rank: the default group's. seed: the same on all ranks.
        """
        self._length = dataset if isinstance(dataset, int) else len(dataset)
        self.num_replicas = get_world_size() if num_replicas is None else num_replicas
        self.rank = get_rank() if rank is None else rank
        if self.rank not in range(self.num_replicas):
            raise ConfigError(f"rank {self.rank} is none of {self.num_replicas} ranks, from 0")
        if batch_size < 1 or self._length < 1:
            raise ConfigError(f"batches of {batch_size} of {self._length} samples are none")
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.drop_last = drop_last
        self.epoch = 0
        self.num_taken = 0
        """How many batches of this epoch have been given out."""

    def __len__(self) -> int:
        """How many batches an epoch has."""
        whole, rest = divmod(self._length, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self.counted(self.ahead())

    def ahead(self) -> _Ahead:
        """The batches that are left, which do not count as taken: for loaders that ask ahead."""
        return _Ahead(self)

    def counted(self, batches: Iterable[T]) -> Iterator[T]:
        """The same, and each counts as taken when it is given out."""
        for batch in batches:
            self.num_taken += 1
            yield batch
        self.epoch, self.num_taken = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {"epoch": self.epoch, "num_taken": self.num_taken, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.epoch, self.num_taken = int(state["epoch"]), int(state["num_taken"])
        self.seed = int(state["seed"])

    def left(self) -> Iterator[list[int]]:
        """This rank's part of each batch that is left of the epoch, without counting."""
        order = np.arange(self._length)
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(order)
        for number in range(self.num_taken, len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            cuts = even_cuts(batch.size, self.num_replicas)
            yield batch[cuts[self.rank] : cuts[self.rank + 1]].tolist()


class _Ahead:
    """What torch's DataLoader takes as batch_sampler."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return self._sampler.left()

    def __len__(self) -> int:
        return len(self._sampler) - self._sampler.num_taken
