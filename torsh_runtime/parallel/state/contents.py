"""What one rank has of a training's state, and what it is restored from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torsh_runtime.layout import ShardedTensor


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


GROUPS = "param_groups"
"""What an optimizer's plain value has, and nothing else."""


def merged_values(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The plain values of all ranks, in their order: of what several have the first one's, but of
    an optimizer the parameters of all, who may be stages of a pipeline."""
    merged: dict[str, Any] = {}
    for values in told:
        for name, value in values.items():
            if name in merged and _is_of_optimizer(value) and _is_of_optimizer(merged[name]):
                merged[name] = {GROUPS: _merged_groups(merged[name][GROUPS], value[GROUPS])}
            else:
                merged.setdefault(name, value)
    return merged


def _is_of_optimizer(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {GROUPS} and isinstance(value[GROUPS], list)


def _merged_groups(ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """Groups of one number and with the same options are one."""
    groups = [*ours]
    for number, their in enumerate(theirs):
        own = groups[number] if number < len(ours) else None
        if own is not None and {**own, "params": ()} == {**their, "params": ()}:
            params = [*dict.fromkeys([*own["params"], *their["params"]])]
            groups[number] = {**own, "params": params}
        else:
            groups.append(their)
    return groups


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
