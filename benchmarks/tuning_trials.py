"""Measures all_reduce in groups with different limits, and finds the best limits."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

import torsh_runtime as tr
from benchmarks.timing import each, typical

VERSION = 1
VARIABLE = "TORSH_TUNING"
_FEWEST, _MOST = 3, 2000
_CLEARLY = 0.97
"""Ratio to the first value below which another one is clearly faster on average, not by chance."""

Times = Mapping[int, float]
"""Seconds of one call, by size in bytes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes the settings of a group."""

    section: str
    """Section of the tuning file: "shm" or "tcp"."""
    limits: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class Trials:
    """Makes new groups of all ranks for each setting. Every rank gets the same times."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        """Create the default group, with built-in limits; close() ends it.

        `folder` is for this rank's files.
        """
        self._rounds, self._seconds = options.rounds, options.seconds
        self._path = folder / "trial.json"
        self._path.write_text(json.dumps({"version": VERSION}))
        os.environ[VARIABLE] = str(self._path)
        tr.init_process_group()

    def close(self) -> None:
        """Leave the default group."""
        tr.destroy_process_group()

    def times(self, settings: Sequence[Setting], sizes: Sequence[int]) -> list[Times]:
        """Return, for each setting, the slowest rank's median at each size, over interleaved
        rounds.
        """
        taken: list[dict[int, list[float]]] = [{size: [] for size in sizes} for _ in settings]
        for _ in range(self._rounds):
            for setting, mine in zip(settings, taken, strict=True):
                with self._group(setting) as group:
                    for size in sizes:
                        mine[size].append(self._worst(group, size))
        return [{size: statistics.median(all_) for size, all_ in mine.items()} for mine in taken]

    @contextlib.contextmanager
    def _group(self, setting: Setting) -> Iterator[tr.ProcessGroup]:
        self._path.write_text(json.dumps(_content(setting)))
        os.environ.update(setting.environment)
        group = tr.new_group()
        try:
            yield group
        finally:
            tr.destroy_process_group(group)
            for name in setting.environment:
                del os.environ[name]

    def _worst(self, group: tr.ProcessGroup, nbytes: int) -> float:
        call = partial(group.all_reduce, np.zeros(nbytes // 4, np.float32))
        count = np.array([min(max(int(self._seconds / typical(call, 3)), _FEWEST), _MOST)])
        tr.broadcast(count, 0)
        median = np.array([statistics.median(each(call, int(count[0]))) / 1e9])
        tr.all_reduce(median, tr.ReduceOp.MAX)
        return float(median[0])


def _content(setting: Setting) -> dict[str, object]:
    limits: object = dict(setting.limits)
    if setting.section == "shm":
        limits = {str(tr.get_world_size()): limits}
    return {"version": VERSION, setting.section: limits}


def crossover(small: Times, large: Times) -> int:
    """Return the size up to which `small` should be used, and `large` above; 0 if never.

    It is the choice with the smallest times on average (geometric), so that one time that is slow
    by chance does not decide.
    """
    gains = itertools.accumulate(math.log(large[size] / small[size]) for size in sorted(small))
    reached = {0: 0.0, **dict(zip(sorted(small), gains, strict=True))}
    return max(reached, key=lambda size: reached[size])


def fastest(found: Mapping[int, Times]) -> int:
    """Return the value with the smallest times on average (geometric); in doubt the first."""
    first = next(iter(found.values()))
    means = {
        value: math.exp(statistics.mean(math.log(times[size] / first[size]) for size in first))
        for value, times in found.items()
    }
    best = min(means, key=lambda value: means[value])
    return best if means[best] < _CLEARLY else next(iter(found))
