"""Wraps the collectives that compressors use, and counts their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.agreement import agree
from torsh_runtime.compression.arrays import Array, array_module
from torsh_runtime.compression.tensors import plain

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup

_ADVICE = "Make compressors alike on all ranks, or load the state of the same step everywhere"


@dataclass(slots=True)
class Stats:
    """Counts what this rank has sent, as the payload of ring algorithms.

    With `n` ranks an all_reduce sends 2(n-1)/n of its bytes, an all_gather (n-1)/n of its result's,
    an all_to_all (n-1)/n of its input's. Headers of messages are not counted.

    Example:
        ```python
        stats = compressor.stats()
        print(f"{stats.bytes_sent} bytes, {stats.ratio:.1%} of an exact all_reduce")
        ```
    """

    bytes_sent: int = 0
    """Bytes that this rank has sent."""
    dense_bytes: int = 0
    """Bytes that all_reduces of the same buckets in float32 would have sent."""
    steps: int = 0
    """Number of steps."""

    @property
    def ratio(self) -> float:
        """Return the bytes sent per byte of an exact all_reduce; 1.0 if nothing would be sent."""
        return self.bytes_sent / self.dense_bytes if self.dense_bytes else 1.0


class Wire:
    """Provides one group's collectives, each complete on return, and counts their bytes."""

    def __init__(self, group: ProcessGroup, stats: Stats) -> None:
        self._group = group
        self._stats = stats
        self.rank, self.world_size = group.rank, group.world_size

    def sum(self, array: Array) -> None:
        """Sum the array in place over all ranks."""
        self._all_reduce(array, ReduceOp.SUM)

    def average(self, array: Array) -> None:
        """Average the array in place over all ranks."""
        self._all_reduce(array, ReduceOp.AVG)

    def all_gather(self, array: Array) -> Array:
        """Return all ranks' arrays, which have one size, as a row for each rank."""
        rows = array_module(array).empty((self.world_size, *array.shape), array.dtype)
        self._group.all_gather_into_tensor(plain(rows), plain(array))
        self._count(rows.nbytes)
        return rows

    def all_gather_uneven(self, array: Array) -> list[Array]:
        """Return all ranks' arrays, whose sizes may differ, by rank."""
        sizes = self.numbers(array.size)[:, 0]
        parts = [array_module(array).empty(int(size), array.dtype) for size in sizes]
        self._group.all_gather([plain(part) for part in parts], plain(array))
        self._count(sum(part.nbytes for part in parts))
        return parts

    def all_to_all(self, array: Array) -> Array:
        """Send the r-th of world_size equal parts to rank r; return the received parts in order
        of rank."""
        received = array_module(array).empty_like(array)
        self._group.all_to_all_single(plain(received), plain(array))
        self._count(array.nbytes)
        return received

    def numbers(self, *own: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Return all ranks' numbers, int64, as a row for each rank."""
        rows = self._group.all_gather_numbers(np.array(own, np.int64))
        self._count(rows.nbytes)
        return rows.reshape(self.world_size, len(own))

    def check_agreed(self, options: str, steps: int, shared: int) -> None:
        """Raise ConfigError on all ranks unless options, steps and the shared checksum are
        equal."""
        told: dict[str, object] = {"options": [options], "steps": steps}
        told["what all ranks share"] = [f"what all ranks share, of checksum {shared:08x}"]
        agree(self._group, "the compressor", told, advice=_ADVICE)
        self._count(8 * self.world_size)

    def dense(self, elements: int) -> None:
        """Count what float32 gradients of this size would have sent."""
        self._stats.dense_bytes += 2 * self._others(4 * elements)

    def _all_reduce(self, array: Array, op: ReduceOp) -> None:
        self._group.all_reduce(plain(array), op)
        self._count(2 * array.nbytes)

    def _count(self, nbytes: int) -> None:
        self._stats.bytes_sent += self._others(nbytes)

    def _others(self, nbytes: int) -> int:
        return nbytes * (self.world_size - 1) // self.world_size
