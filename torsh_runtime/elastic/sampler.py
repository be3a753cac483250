"""Distributes samples over ranks that may come and go within an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import numpy as np

from torsh_runtime.comm.default import default_group
from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import even_cuts
from torsh_runtime.parallel.groups import default_if_any

T = TypeVar("T")


class ElasticSampler:
    """Yields batches of a dataset's indices, each shared by all ranks.

    A batch does not depend on the number of ranks, so each sample is taken exactly once per epoch
    even if ranks come and go. Batches that were given out count as taken; after the last batch the
    next epoch begins. With torch's DataLoader, which prefetches, use DataLoader(data,
    batch_sampler=sampler.ahead()), and `for batch in sampler.counted(loader)`.

    Example:
        ```python
        sampler = tr.elastic.ElasticSampler(dataset, batch_size=256)
        while sampler.epoch < epochs:
            for indices in sampler:  # this rank's part of each batch that is left in the epoch
                train(dataset, indices)
                state.commit()
        ```
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
        """Configure the sampler.

        Args:
            dataset: A dataset with a length, or the length.
            batch_size: Samples per batch of all ranks together. If gradients are averaged over
                ranks, it must be a multiple of every number of ranks.
            shuffle: Whether to shuffle the samples in each epoch.
            seed: The seed of the order, equal on all ranks.
            drop_last: Whether to leave out the last batch of an epoch if it is smaller.
            num_replicas: The number of ranks; None is the default group's, or that of
                torch.distributed's of backend "torsh" if only torch has one.
            rank: This rank; None is that in the same group.

        Raises:
            ConfigError: If the rank is out of range, or if there are no samples or no batch size.
        """
        self._length = dataset if isinstance(dataset, int) else len(dataset)
        if num_replicas is None or rank is None:
            group = default_if_any() or default_group()
            num_replicas = group.world_size if num_replicas is None else num_replicas
            rank = group.rank if rank is None else rank
        self.num_replicas, self.rank = num_replicas, rank
        if self.rank not in range(self.num_replicas):
            raise ConfigError(f"rank {self.rank} is none of {self.num_replicas} ranks, from 0")
        if batch_size < 1 or self._length < 1:
            raise ConfigError(f"batches of {batch_size} of {self._length} samples are none")
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.drop_last = drop_last
        self.epoch = 0
        self.num_taken = 0
        """Number of batches of this epoch that have been given out."""

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        whole, rest = divmod(self._length, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self.counted(self.ahead())

    def ahead(self) -> _Ahead:
        """Return the remaining batches without counting them as taken, for loaders that
        prefetch.

        Example:
            ```python
            loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler.ahead())
            for batch in sampler.counted(loader):
                train(batch)
            ```
        """
        return _Ahead(self)

    def counted(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, and count each as taken when it is given out.

        Args:
            batches: Batches of ahead(), such as those of a loader.

        Example:
            ```python
            loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler.ahead())
            for batch in sampler.counted(loader):
                train(batch)
            ```
        """
        for batch in batches:
            self.num_taken += 1
            yield batch
        self.epoch, self.num_taken = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, and what the order of samples depends on."""
        where = {"epoch": self.epoch, "num_taken": self.num_taken}
        return {**where, "seed": self.seed, **self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the saved position.

        Args:
            state: What state_dict() returned.

        Raises:
            ConfigError: If that is within an epoch that was divided into different batches.
        """
        own = self._order()
        saved = {key: state.get(key, each) for key, each in own.items()}
        if state["num_taken"] and saved != own:
            raise ConfigError(
                f"the saved position is within an epoch with other batches, {saved}; these are "
                f"{own}: make the sampler as it was, with a batch_size that does not depend on the "
                f"number of ranks, or begin the epoch anew (num_taken=0)"
            )
        self.epoch, self.num_taken = int(state["epoch"]), int(state["num_taken"])
        self.seed = int(state["seed"])

    def _order(self) -> dict[str, Any]:
        """Return what the batches depend on besides the seed and the epoch."""
        own = {"length": self._length, "batch_size": self.batch_size}
        return {**own, "shuffle": self.shuffle, "drop_last": self.drop_last}

    def left(self, epoch: int, first: int) -> Iterator[list[int]]:
        """Yield this rank's part of each batch of an epoch, without counting.

        Args:
            epoch: The epoch's number.
            first: The number of the first batch.
        """
        order = np.arange(self._length)
        if self.shuffle:
            np.random.default_rng((self.seed, epoch)).shuffle(order)
        for number in range(first, len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            cuts = even_cuts(batch.size, self.num_replicas)
            yield batch[cuts[self.rank] : cuts[self.rank + 1]].tolist()


class _Ahead:
    """Serves as the batch_sampler of torch's DataLoader.

    torchdata's StatefulDataLoader keeps its state with each batch, and gives it back before it
    asks again: the batches that its workers have ready are not lost.
    """

    fits_other_ranks = True
    """True, since batches do not depend on the number of ranks."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = self.sampler = sampler
        self._place: tuple[int, int] | None = None
        """Epoch and batch of its next batch; None for the sampler's position."""
        self._loaded: int | None = None
        self._is_at_end = False
        """True if the end of an epoch was loaded: a loader that had reached it iterates twice."""

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
        """Return the position after the last batch that it gave out."""
        state = self._sampler.state_dict()
        if self._place is not None:
            state |= {"epoch": self._place[0], "num_taken": self._place[1]}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the saved position. Raises ConfigError as ElasticSampler does."""
        self._sampler.load_state_dict(state)
        self._loaded = self._sampler.num_taken
        self._is_at_end = self._loaded >= len(self._sampler)
