"""Defines what the protection of sharded models needs of a library that shards."""

from __future__ import annotations

from typing import Any, Protocol

from torsh_runtime.elastic.versions import Version
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.parallel.state import Contents, Restoration, Source


class Protected(Protocol):
    """Gives access to this rank's part of models that are sharded, and of their optimizers."""

    @property
    def place(self) -> int:
        """Return a number that ranks have in common which have the same parts of all models."""

    @property
    def can_be_cut_anew(self) -> bool:
        """Return whether other numbers of ranks can have other parts."""

    def contents(self) -> Contents:
        """Return the present state."""

    def load(self, version: Version) -> None:
        """Take the state that a version has. Raises CheckpointError if it does not fit."""

    def restoration(self, source: Source) -> Restoration:
        """Plan to take the state from parts of others, if it can be cut anew."""

    def gradient(self, parameter: Any) -> ShardedTensor | None:
        """Return this rank's part of a gradient; None if there is none."""

    def room_for_gradient(self, parameter: Any, dtype: str) -> ShardedTensor:
        """Return memory for this rank's part of a gradient."""

    def give_gradient(self, parameter: Any, values: Any) -> None:
        """Let a parameter have these values as its gradient."""

    def note_flags(self) -> None:
        """Remember the flags with which a step begins."""

    def begin_anew(self) -> bool:
        """Drop what is left of passes that were broken off, and return whether this rank has
        another part now, without values. All ranks call it, in their new round."""
