"""What sharding saves, as counted where memory is taken and given back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of this rank's parameters and gradients, its equal part of what a node's ranks have in
    common included. The optimizer's state, activations and the caller's own are not among them."""

    parameters: int
    """Sharded or replicated, all the time."""
    current: int
    """Parameters and gradients, sharded and whole ones, now."""
    peak: int
    """The most of that until now."""
    saved: int
    """How much less its parameters are than the whole model's."""
    num_all_gathers: int
    """How often a unit's parameters were gathered, or in a node found to be whole."""
    num_reduce_scatters: int
    """How often gradients were reduced."""


class MemoryAccounting:
    """Counts."""

    def __init__(self) -> None:
        self.current = self.peak = self.gathers = self.scatters = 0

    def take(self, num_bytes: int) -> None:
        """Memory is in use."""
        self.current += num_bytes
        self.peak = max(self.peak, self.current)

    def give(self, num_bytes: int) -> None:
        """It is no more."""
        self.current -= num_bytes

    def touch(self, num_bytes: int) -> None:
        """So much more was in use for a moment."""
        self.peak = max(self.peak, self.current + num_bytes)

    def absorb(self, other: MemoryAccounting) -> None:
        """What another one counted is counted here."""
        self.gathers += other.gathers
        self.scatters += other.scatters
        self.take(other.current)
