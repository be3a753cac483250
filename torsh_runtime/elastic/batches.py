"""Draws batches so that a step that is repeated gets the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torsh_runtime.elastic.sampler import ElasticSampler
from torsh_runtime.errors import ConfigError


class Batches:
    """Draws from loaders whose position is that of a sampler in the training's state."""

    def __init__(self, samplers: list[ElasticSampler]) -> None:
        self._samplers = samplers
        self._open: dict[int, tuple[Any, Iterator[Any]]] = {}
        """Loaders by id(), with what is left of their epoch."""

    def next(self, loader: Any) -> Any:
        """Return the next batch; after an epoch's last one the first of the next epoch.

        Raises ConfigError for a loader that cannot go back to a step's first batch.
        """
        for _ in range(2):
            _, batches = self._open.get(id(loader)) or (loader, self._begin(loader))
            self._open[id(loader)] = loader, batches
            for batch in batches:
                return batch
            del self._open[id(loader)]
        raise ConfigError(f"{loader!r} has no batches: give it more samples, or smaller batches")

    def go_back(self) -> None:
        """Begin anew at the samplers' positions, which have been restored."""
        self._open.clear()

    def _begin(self, loader: Any) -> Iterator[Any]:
        sampler = loader
        if not isinstance(loader, ElasticSampler):
            sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        if not any(sampler is each for each in self._samplers):
            raise ConfigError(
                f"step.next() cannot find the place in {type(loader).__name__} again: give join() "
                f"a sampler=tr.elastic.ElasticSampler(...), and step.next() that sampler or a "
                f"DataLoader(data, batch_sampler=sampler.ahead())"
            )
        return iter(loader) if sampler is loader else iter(sampler.counted(loader))
