"""Marks parameters with the ranks that have other parts of them, or the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """A rank has a part of a parameter."""

    name: str
    group: ProcessGroup
    """Ranks that have the other parts."""
    dim: int
    """Along which it is cut."""
    clipping: str | None
    """The call that clips gradients of such parts; None: torch's own can, as `group` is all
    ranks."""
    own: Callable[[Sequence[Any]], None] | None = None
    """Lets single ranks own such parameters as a whole. All ranks call it. None: it is cut for
    good."""


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


def check_norm_type(norm_type: float) -> None:
    """Raise ConfigError for a number that is not the exponent of a norm."""
    if not norm_type > 0:
        raise ConfigError(
            f"norm_type must be > 0 or inf, not {norm_type!r}: what ranks have of a norm can be "
            f"added up for these only"
        )
