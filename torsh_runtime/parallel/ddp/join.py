"""Training where ranks have unequal numbers of batches."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError, GradientError

_LEFT = (
    "has no batch left: give all ranks as many batches, or leave throw_on_early_termination out, "
    "so that the others continue"
)


@dataclass(frozen=True, slots=True)
class Company:
    """Tells which ranks have a batch at this step, and whether they send buffers before it and
    average gradients after it."""

    active: list[int]
    averages: bool
    sends_buffers: bool


class Joining:
    """Exchanges among the ranks what each does at each step of a join() block."""

    def __init__(
        self, group: ProcessGroup, model: Sequence[str], divides_by_initial: bool, throws: bool
    ) -> None:
        """model: the names of its parameters."""
        self._group = group
        self._model = zlib.crc32("\n".join(model).encode())
        self._divides_by_initial = divides_by_initial
        self._throws = throws
        self.last_active: list[int] = []

    def meet(self, is_active: bool, averages: bool = False, sends_buffers: bool = False) -> Company:
        """Tell the others, who do so too, whether this rank has a batch. On all ranks GradientError
        if one has none and that is to be an error, ConfigError if their options differ."""
        options = (self._divides_by_initial, self._throws)
        own = np.array([is_active, averages, sends_buffers, self._model, *options], np.int64)
        rows = self._group.all_gather_numbers(own)
        _check_model(rows[:, 3])
        _check_options(rows[:, 4:])
        active = np.flatnonzero(rows[:, 0]).tolist()
        if self._throws and 0 < len(active) < self._group.world_size:
            gone = {*range(self._group.world_size)} - {*active}
            raise GradientError(dict.fromkeys(sorted(gone), _LEFT))
        if active:
            self.last_active = active
        averages, sends = bool(rows[:, 1].any()), bool(rows[:, 2].any())
        return Company(active, averages, sends)

    def divisor(self, company: Company) -> int | None:
        """Return the divisor of sums of gradients, or None for the number of ranks."""
        return None if self._divides_by_initial else len(company.active)


def _check_model(models: NDArray[np.int64]) -> None:
    """Raise ConfigError if the ranks, which have one entry each, join different models."""
    others = np.flatnonzero(models != models[0]).tolist()
    if others:
        raise ConfigError(
            f"join() of rank(s) {', '.join(map(str, others))} is of another model than rank 0's: "
            f"ranks that train several models wrap them together, as parts of one module"
        )


def _check_options(rows: NDArray[np.int64]) -> None:
    """Raise ConfigError if the ranks, which have one row each, gave join() different options."""
    names = ("divide_by_initial_world_size", "throw_on_early_termination")
    for name, values in zip(names, rows.T.astype(bool), strict=True):
        others = np.flatnonzero(values != values[0]).tolist()
        if others:
            raise ConfigError(
                f"join() has {name}={values[0]} on rank 0 and {not values[0]} on rank(s) "
                f"{', '.join(map(str, others))}: give all ranks the same"
            )
