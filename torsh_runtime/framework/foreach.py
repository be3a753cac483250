"""Declares functions of many tensors at once, none of which waits for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Foreach(Protocol):
    """Declares the functions that both frameworks have. They work behind what the current stream of
    the values' device has still to do, and return at once."""

    def norm(self, values: Sequence[Any], order: float) -> Any:
        """Return the norm of each of these values of one device, as one array of float64 there.
        None of the values is empty."""

    def mul_(self, values: Sequence[Any], factor: float) -> None:
        """Multiply all values by a number, in place."""

    def unscale_(self, values: Sequence[Any], factor: float) -> Any:
        """Multiply all values, of one device, by a number, in place. Return a flat array there, of
        which some element is not zero if and only if some value is not finite now. None of the
        values is empty."""

    def cat(self, values: Sequence[Any]) -> Any:
        """Return the elements of all values, of one kind, in one flat array."""

    def copy_(self, values: Sequence[Any], flat: Any) -> None:
        """Copy the elements of such an array into the values."""

    def tolist(self, values: Any) -> list[float]:
        """Return the elements of a flat array as numbers. This one waits for the device, once."""
