"""Keeps torchdata's loaders and samplers, which are at a place in their rank's share of the
dataset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torsh_runtime.errors import CheckpointError
from torsh_runtime.parallel.state.contents import Contents, Source
from torsh_runtime.parallel.state.plain import decode, encode


class LoaderState:
    """Keeps a StatefulDataLoader or StatefulDistributedSampler. Each rank has its own state."""

    def __init__(self, name: str, loader: Any, rank: int, num_ranks: int) -> None:
        self._name, self._loader = name, loader
        self._rank, self._num_ranks = rank, num_ranks

    def keep(self, contents: Contents) -> None:
        """Add the loader's state to what is kept."""
        own = f"{self._name}/rank-{self._rank}"
        contents.values[own] = encode(self._loader.state_dict(), own, contents.tensors)
        contents.values[self._name] = {"num_ranks": self._num_ranks}

    def restore(self, source: Source) -> Callable[[], None]:
        """Read the kept state, and return a function that loads it.

        Raises CheckpointError for another number of ranks, unless the loader's batches do not
        depend on that, or the epoch was over, so that the loader begins the next one as it is.
        """
        saved = _num_ranks(source.values[self._name])
        names = ((rank, f"{self._name}/rank-{rank}") for rank in range(saved))
        kept = {rank: source.values[name] for rank, name in names if name in source.values}
        if saved == self._num_ranks and self._rank in kept:
            return self._load(kept[self._rank], source)
        if kept and all(map(_is_over, kept.values())):
            return lambda: None
        if kept and self._fits_other_ranks():
            return self._load(next(iter(kept.values())), source)
        raise CheckpointError(
            f"{self._name!r} was kept by {saved} ranks within an epoch, and there are "
            f"{self._num_ranks}, whose shares of the dataset are others: load it with as many "
            f"ranks, give a loader batch_sampler=tr.elastic.ElasticSampler(...).ahead(), which "
            f"goes on with any number, or leave {self._name!r} out of the state"
        )

    def _load(self, kept: Any, source: Source) -> Callable[[], None]:
        return partial(self._loader.load_state_dict, decode(kept, None, source))

    def _fits_other_ranks(self) -> bool:
        batches = getattr(self._loader, "batch_sampler", None)
        return bool(getattr(batches, "fits_other_ranks", False))


def is_loader(thing: object) -> bool:
    """Return whether it is torchdata's StatefulDataLoader, or torch's DistributedSampler with a
    state.
    """
    loaders = sys.modules.get("torchdata.stateful_dataloader")
    if loaders is not None and isinstance(thing, loaders.StatefulDataLoader):
        return True
    samplers = sys.modules.get("torch.utils.data.distributed")
    is_sampler = samplers is not None and isinstance(thing, samplers.DistributedSampler)
    return is_sampler and hasattr(thing, "load_state_dict")


def _is_over(kept: Any) -> bool:
    return isinstance(kept, dict) and bool(kept.get("_iterator_finished"))


def _num_ranks(kept: Any) -> int:
    """Return the number of ranks that kept it. CheckpointError for another format."""
    found = kept.get("num_ranks") if isinstance(kept, dict) else None
    if type(found) is not int:
        raise CheckpointError(
            "a loader was kept by an earlier version, which had only rank 0's state of it: leave "
            "it out of the state to begin the epoch anew"
        )
    return found
