"""Marks parameters with the ranks that have other parts of them, or the same."""

from __future__ import annotations

from dataclasses import dataclass

from torsh_runtime.comm.group import ProcessGroup


@dataclass(frozen=True, slots=True)
class Part:
    """A rank has a part of a parameter."""

    name: str
    group: ProcessGroup
    """Ranks that have the other parts."""
    dim: int | None
    """Along which it is cut; None: in order of its elements."""
    clipping: str
    """The call that clips gradients of such parts."""
    adds_up: bool = False
    """The framework's own clipping may add up over the group, whose ranks all call it."""


@dataclass(frozen=True, slots=True)
class Same:
    """Ranks have the same of a parameter, and compute on the same batch, so that their gradients
    are the same."""

    name: str
    group: ProcessGroup


class Marks:
    """Holds the marks of one parameter, in the order in which they were made. Pickling drops
    them."""

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        """Of the whole parameter."""
        self.parts: list[Part] = []
        self.same: list[Same] = []

    def __reduce__(self) -> tuple[type[bool], tuple[()]]:
        return bool, ()
