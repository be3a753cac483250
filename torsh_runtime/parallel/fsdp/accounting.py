"""Counts the memory that the parameters and gradients of a sharded model take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Counts bytes of this rank's parameters and gradients.

    Its equal part of what a node's ranks have in common is included. The optimizer's state,
    activations and the caller's own memory are not.

    Example:
        ```python
        stats = model.memory_stats()
        print(f"peak {stats.peak / 2**20:.0f} MiB, {stats.saved / 2**20:.0f} MiB saved")
        ```
    """

    parameters: int
    """Bytes of its parameters, sharded or replicated, all the time."""
    current: int
    """Bytes of parameters and gradients, sharded and whole ones, now."""
    peak: int
    """The largest value of `current` so far."""
    saved: int
    """Bytes that its parameters need less than the whole model's."""
    num_all_gathers: int
    """Number of times that a unit's parameters were gathered, or were found whole in the node."""
    num_reduce_scatters: int
    """Number of times that gradients were reduced."""


class MemoryAccounting:
    """Counts bytes in use, and collectives."""

    def __init__(self) -> None:
        self.current = self.peak = self.gathers = self.scatters = 0

    def take(self, num_bytes: int) -> None:
        """Count `num_bytes` of memory as in use."""
        self.current += num_bytes
        self.peak = max(self.peak, self.current)

    def give(self, num_bytes: int) -> None:
        """Count `num_bytes` of memory as freed."""
        self.current -= num_bytes

    def touch(self, num_bytes: int) -> None:
        """Count `num_bytes` that were in use only for a moment."""
        self.peak = max(self.peak, self.current + num_bytes)

    def absorb(self, other: MemoryAccounting) -> None:
        """Add what another accounting has counted."""
        self.gathers += other.gathers
        self.scatters += other.scatters
        self.take(other.current)
