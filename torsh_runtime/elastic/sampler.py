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
        where = {"epoch": self.epoch, "num_taken": self.num_taken}
        return {**where, "seed": self.seed, **self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there. ConfigError within an epoch of other batches."""
        own = self._order()
        saved = {key: state.get(key, each) for key, each in own.items()}
        if state["num_taken"] and saved != own:
            raise ConfigError(
                f"the sampler stands within an epoch of other batches, {saved}, and these are "
                f"{own}: make the sampler as it was, or begin the epoch anew (num_taken=0)"
            )
        self.epoch, self.num_taken = int(state["epoch"]), int(state["num_taken"])
        self.seed = int(state["seed"])

    def _order(self) -> dict[str, Any]:
        """What batches follow from, beside the seed and the epoch."""
        own = {"length": self._length, "batch_size": self.batch_size}
        return {**own, "shuffle": self.shuffle, "drop_last": self.drop_last}

    def left(self, epoch: int, first: int) -> Iterator[list[int]]:
        """This rank's part of each batch of an epoch from that on, without counting."""
        order = np.arange(self._length)
        if self.shuffle:
            np.random.default_rng((self.seed, epoch)).shuffle(order)
        for number in range(first, len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            cuts = even_cuts(batch.size, self.num_replicas)
            yield batch[cuts[self.rank] : cuts[self.rank + 1]].tolist()


class _Ahead:
    """What torch's DataLoader takes as batch_sampler.

    torchdata's StatefulDataLoader keeps its state with each batch, and gives it back before it
    asks again: the batches that its workers have ready are not lost.
    """

    fits_other_ranks = True
    """Batches do not depend on the number of ranks."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._place: tuple[int, int] | None = None
        """Epoch and batch that it stands before; None: where the sampler stands."""
        self._loaded: int | None = None
        self._is_at_end = False
        """Whether the end of an epoch was loaded: a loader that had found that asks twice."""

    def __iter__(self) -> Iterator[list[int]]:
        sampler, first = self._sampler, self._loaded
        if first is None:
            if self._is_at_end and sampler.num_taken >= len(sampler):
                sampler.epoch, sampler.num_taken = sampler.epoch + 1, 0
            self._is_at_end = False
            first = sampler.num_taken
        self._place, self._loaded = (sampler.epoch, first), None
        return self._giving(sampler.epoch, first)

    def __len__(self) -> int:
        return len(self._sampler) - self._sampler.num_taken

    def _giving(self, epoch: int, first: int) -> Iterator[list[int]]:
        for number, batch in enumerate(self._sampler.left(epoch, first), first):
            self._place = epoch, number + 1
            yield batch
        self._place = epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: behind the batch that it gave last."""
        state = self._sampler.state_dict()
        if self._place is not None:
            state |= {"epoch": self._place[0], "num_taken": self._place[1]}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there. ConfigError as ElasticSampler."""
        self._sampler.load_state_dict(state)
        self._loaded = self._sampler.num_taken
        self._is_at_end = self._loaded >= len(self._sampler)
