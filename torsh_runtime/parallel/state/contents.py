"""Holds one rank's part of a training's state, and reads what it is restored from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torsh_runtime.arrays.raw import empty
from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import Piece, ShardedTensor

_ENDS = (".", "/")
"""Characters between the parts of a name."""


class Names:
    """Gives things the names under which they were kept."""

    def __init__(self, kept: Mapping[str, str]) -> None:
        """Take the beginnings of names here, with those that they were kept with. The longest one
        counts, and ends where a name or a part of it ends."""
        self._kept = sorted(kept.items(), key=lambda each: -len(each[0]))

    def __call__(self, name: str) -> str:
        """Return the name that this one was kept as."""
        for here, there in self._kept:
            rest = name[len(here) :]
            if name.startswith(here) and (not rest or here[-1:] in _ENDS or rest[0] in _ENDS):
                return there + rest
        return name


@dataclass
class Contents:
    """Holds pieces of tensors and plain values, under names that depend neither on the number of
    ranks nor on wrappers of the model.

    A model's tensors are "model/layers.0.weight", an optimizer's
    "optimizer/state/layers.0.weight/exp_avg", where "model" and "optimizer" are the program's names
    for the two.
    """

    tensors: dict[str, ShardedTensor] = field(default_factory=dict)
    """Tensors themselves, not copies."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values that JSON can represent."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Further names of parameters that modules share, with the names that they have here."""
    of_first: set[str] = field(default_factory=set)
    """Names of tensors that may differ between ranks, and are kept as the first rank has them: all
    but parameters and tensors that are cut as these are.
    """
    stateful: set[str] = field(default_factory=set)
    """Names of objects with a state_dict() that have one state for all ranks."""
    agreed: frozenset[str] = frozenset()
    """Names of states of parameters in optimizers that all ranks keep by pieces."""
    by_pieces: set[str] = field(default_factory=set)
    """Names of those that this rank can only keep by pieces: they make sense with its piece only.
    """


class Source(Protocol):
    """Gives access to contents that were kept. It raises CheckpointError for what is missing or
    does not fit.
    """

    @property
    def values(self) -> Mapping[str, Any]:
        """Return the plain values, as in Contents."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of all tensors that begin with this prefix."""

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return the dtype and shape of a whole tensor."""

    def check(self, name: str, target: ShardedTensor) -> None:
        """Raise CheckpointError if the tensor is missing or cannot be read into this target."""

    def read(self, name: str, target: ShardedTensor) -> None:
        """Read the target's piece of the tensor into its values."""

    def whole(self, name: str, framework: str) -> Any:
        """Read the whole tensor, as an array of "numpy" or tensor of "torch"."""


def read_whole(source: Source, name: str, framework: str) -> Any:
    """Read a whole tensor into memory of its own."""
    dtype, shape = source.kind(name)
    values = empty(framework, shape, dtype)
    source.read(name, ShardedTensor(values, Piece.whole(shape)))
    return values


class NotedReads:
    """Checks and notes reads from a source, without reading anything yet.

    Attributes: missing (names that the source lacks, if that is allowed).
    """

    def __init__(self, source: Source, strict: bool = True, names: Names | None = None) -> None:
        """Prepare to note reads. `strict`: whether a missing name is an error. `names`: the
        source's own names for what it is asked for."""
        self._source, self._strict = source, strict
        self.name_of = names or Names({})
        self.values, self.names = source.values, source.names
        self.missing: list[str] = []
        self.reads: list[tuple[str, ShardedTensor]] = []

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape as the source does."""
        return self._source.kind(self.name_of(name))

    def check(self, name: str, target: ShardedTensor) -> None:
        """Check the target as the source does."""
        self._source.check(self.name_of(name), target)

    def read(self, name: str, target: ShardedTensor) -> None:
        """Check the target and note that it is to be read later."""
        if self._is_missing(name):
            self.missing.append(name)
            return
        self.check(name, target)
        self.reads.append((self.name_of(name), target))

    def _is_missing(self, name: str) -> bool:
        """Return whether the source lacks this tensor and that is allowed."""
        if self._strict:
            return False
        try:
            self._source.kind(self.name_of(name))
        except CheckpointError:
            return True
        return False

    def values_of(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the plain values of these names. Raises CheckpointError for one that the source
        lacks, unless that is allowed."""
        found = {}
        for name in names:
            if self.name_of(name) in self.values:
                found[name] = self.values[self.name_of(name)]
            elif self._strict:
                raise CheckpointError(f"nothing was kept as {name!r}, which the model has")
            else:
                self.missing.append(name)
        return found

    def whole(self, name: str, framework: str) -> Any:
        """Return memory for a whole tensor, which is to be read later."""
        return read_whole(self, name, framework)
