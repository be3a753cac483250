"""Which samples of a dataset are this rank's."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.groups import get_rank, get_world_size
from torsh_runtime.errors import ConfigError


class DistributedSampler:
    """Indices of a dataset for this rank, as torch's class of this name; torch's DataLoader takes
    it, and it needs no torch.

    In each epoch every sample is some rank's, and all ranks have equally many: the last ones are
    filled up from the first, or left out with `drop_last`. Where it stands can be saved.
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
        """dataset: its length is taken, or is this number. num_replicas, rank: the default group's.
        seed: the same on all ranks. ConfigError for a rank that is none of them.
        """
        self._length = dataset if isinstance(dataset, int) else len(dataset)
        self.num_replicas = get_world_size() if num_replicas is None else num_replicas
        self.rank = get_rank() if rank is None else rank
        if self.rank not in range(self.num_replicas):
            raise ConfigError(f"rank {self.rank} is none of {self.num_replicas} ranks, from 0")
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = self._start = 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle otherwise than in other epochs, and begin at the first sample; in the epoch that
        was loaded go on where it stood."""
        if epoch != self.epoch:
            self.epoch, self._start = epoch, 0

    def __len__(self) -> int:
        """How many samples this rank has in an epoch."""
        whole, rest = divmod(self._length, self.num_replicas)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[int]:
        start, self._start = self._start, 0
        return iter(self._own()[start:].tolist())

    def state_dict(self, taken: int = 0) -> dict[str, Any]:
        """Where it stands when the program has taken so many samples of the epoch, on each rank."""
        where = {"epoch": self.epoch, "taken": taken, "seed": self.seed}
        return {**where, "num_replicas": self.num_replicas}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on there. ConfigError within an epoch of another number of
        ranks, whose shares were others."""
        saved = state.get("num_replicas", self.num_replicas)
        if state["taken"] and saved != self.num_replicas:
            raise ConfigError(
                f"the sampler stands within an epoch of {saved} ranks, and there are "
                f"{self.num_replicas}: begin the epoch anew (taken=0), or use "
                f"tr.elastic.ElasticSampler, which goes on with any number"
            )
        self.epoch, self._start, self.seed = state["epoch"], state["taken"], state["seed"]

    def _own(self) -> NDArray[np.int64]:
        order = np.arange(self._length)
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(order)
        total = len(self) * self.num_replicas
        order = np.resize(order, total) if self._length else order
        return order[self.rank : total : self.num_replicas]
