"""The collectives that compressors use, and how many bytes they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.agreement import agree
from torsh_runtime.compression.arrays import Array
from torsh_runtime.numpy_or_cupy import array_module

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup

_ADVICE = "Make compressors alike on all ranks, or load the state of the same step everywhere"


@dataclass(slots=True)
class Stats:
    """What this rank has sent, by one rule: the payload that ring algorithms send. Of `n` ranks an
    all_reduce sends 2(n-1)/n of its bytes, an all_gather (n-1)/n of its result's, an all_to_all
    (n-1)/n of its input's. Messages of transports have headers, which are not counted.
    """

    bytes_sent: int = 0
    dense_bytes: int = 0
    """What all_reduces of the same buckets in float32 would have sent."""
    steps: int = 0

    @property
    def ratio(self) -> float:
        """Sent for each byte that would have been; 1.0 where nothing would."""
        return self.bytes_sent / self.dense_bytes if self.dense_bytes else 1.0


class Wire:
    """Collectives of one group, each complete when its call returns, which are counted."""

    def __init__(self, group: ProcessGroup, stats: Stats) -> None:
        self._group = group
        self._stats = stats
        self.rank, self.world_size = group.rank, group.world_size

    def sum(self, array: Array) -> None:
        """Sum in place over all ranks."""
        self._all_reduce(array, ReduceOp.SUM)

    def average(self, array: Array) -> None:
        """Average in place over all ranks."""
        self._all_reduce(array, ReduceOp.AVG)

    def all_gather(self, array: Array) -> Array:
        """Everyone's array of one size: a row for each rank."""
        rows = array_module(array).empty((self.world_size, *array.shape), array.dtype)
        self._group.all_gather_into_tensor(rows, array)
        self._count(rows.nbytes)
        return rows

    def all_gather_uneven(self, array: Array) -> list[Array]:
        """Everyone's array, whose sizes may differ."""
        sizes = self.numbers(array.size)[:, 0]
        parts = [array_module(array).empty(int(size), array.dtype) for size in sizes]
        self._group.all_gather(parts, array)
        self._count(sum(part.nbytes for part in parts))
        return parts

    def all_to_all(self, array: Array) -> Array:
        """What everyone's r-th of world_size equal parts holds, on rank r, in order of rank."""
        received = array_module(array).empty_like(array)
        self._group.all_to_all_single(received, array)
        self._count(array.nbytes)
        return received

    def numbers(self, *own: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Everyone's numbers: a row for each rank."""
        rows = self._group.all_gather_numbers(np.array(own, np.int64))
        self._count(rows.nbytes)
        return rows.reshape(self.world_size, len(own))

    def check_agreed(self, options: str, steps: int, shared: int) -> None:
        """ConfigError on all ranks unless all have the same."""
        told: dict[str, object] = {"options": [options], "steps": steps}
        told["what all ranks share"] = [f"what all ranks share, of checksum {shared:08x}"]
        agree(self._group, "the compressor", told, advice=_ADVICE)
        self._count(8 * self.world_size)

    def dense(self, elements: int) -> None:
        """Count what float32 gradients would have sent."""
        self._stats.dense_bytes += 2 * self._others(4 * elements)

    def _all_reduce(self, array: Array, op: ReduceOp) -> None:
        self._group.all_reduce(array, op)
        self._count(2 * array.nbytes)

    def _count(self, nbytes: int) -> None:
        self._stats.bytes_sent += self._others(nbytes)

    def _others(self, nbytes: int) -> int:
        return nbytes * (self.world_size - 1) // self.world_size
