"""What one rank has of a training's state, and what it is restored from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torsh_runtime.arrays.raw import empty
from torsh_runtime.layout import Piece, ShardedTensor


@dataclass
class Contents:
    """Pieces of tensors and plain values, under names that do not depend on how many ranks there
    are and on what wraps the model.

    A model's tensors are "model/layers.0.weight", an optimizer's
    "optimizer/state/layers.0.weight/exp_avg", where "model" and "optimizer" are the program's names
    for the two.
    """

    tensors: dict[str, ShardedTensor] = field(default_factory=dict)
    """No copies."""
    values: dict[str, Any] = field(default_factory=dict)
    """What JSON can tell."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Further names of parameters that modules share, to the names that they have here."""
    of_first: set[str] = field(default_factory=set)
    """Names of tensors that ranks may have differently, of which the first rank's counts: all but
    parameters and what is cut as they are."""
    stateful: set[str] = field(default_factory=set)
    """Names of things with a state_dict(), of which there is one state for all ranks."""
    agreed: frozenset[str] = frozenset()
    """Names of optimizers' states of parameters that all ranks keep by pieces."""
    by_pieces: set[str] = field(default_factory=set)
    """Names of those that this rank cannot keep otherwise: they make sense with its piece only."""


class Source(Protocol):
    """Contents that were kept. What it lacks or has otherwise is a CheckpointError."""

    @property
    def values(self) -> Mapping[str, Any]:
        """As Contents has them."""

    def names(self, prefix: str) -> list[str]:
        """Of all tensors whose names begin so."""

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype and shape of a whole tensor."""

    def check(self, name: str, target: ShardedTensor) -> None:
        """CheckpointError if it is not there, or cannot be read into this target."""

    def read(self, name: str, target: ShardedTensor) -> None:
        """Write this piece of it to the target's values."""

    def whole(self, name: str, framework: str) -> Any:
        """All of it, as an array of "numpy" or tensor of "torch"."""


def read_whole(source: Source, name: str, framework: str) -> Any:
    """All of a tensor, in memory of its own."""
    dtype, shape = source.kind(name)
    values = empty(framework, shape, dtype)
    source.read(name, ShardedTensor(values, Piece.whole(shape)))
    return values


class NotedReads:
    """A source of which nothing is read yet: what is to be is checked, and noted."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.values = source.values
        self.names, self.kind = source.names, source.kind
        self.reads: list[tuple[str, ShardedTensor]] = []

    def check(self, name: str, target: ShardedTensor) -> None:
        """See Source."""
        self._source.check(name, target)

    def read(self, name: str, target: ShardedTensor) -> None:
        """Later."""
        self.check(name, target)
        self.reads.append((name, target))

    def whole(self, name: str, framework: str) -> Any:
        """See Source."""
        return read_whole(self, name, framework)
