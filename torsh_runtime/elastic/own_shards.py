"""Gives access to this rank's part of models that FullyShardedDataParallel or fully_shard() of ours
has sharded, and of their optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torsh_runtime.arrays.raw import empty
from torsh_runtime.arrays.raw import framework_of as array_framework
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.elastic.versions import Version
from torsh_runtime.framework import framework_of
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.fsdp.fsdp_state import FSDPState
from torsh_runtime.parallel.fsdp.node_storage import groups_by_node, renewed_nodes_of
from torsh_runtime.parallel.fsdp.sharding import shardings_of
from torsh_runtime.parallel.fsdp.storage import forget_consecutive
from torsh_runtime.parallel.state import Contents, Restoration, Source
from torsh_runtime.parallel.state.models import ModelState
from torsh_runtime.parallel.state.optimizers import OptimizerState


class OwnShards:
    """Keeps and restores models that are sharded by this library, and their optimizers."""

    def __init__(
        self, models: Mapping[str, Any], optimizers: Mapping[str, Any], group: ProcessGroup
    ) -> None:
        """Find the passes of the models."""
        self._models, self._optimizers, self._group = models, optimizers, group
        self._parts = {**models, **optimizers}
        self._passes = passes_of(models.values())
        self.note_flags()
        self._by_node = groups_by_node(group)
        """Groups that models in hybrid have of their own."""
        self._pieces: dict[int, Piece] = {}
        """This rank's pieces of parameters, by id()."""
        self._known: list[ModelState] = []
        """What was found of the models, which holds as long as their parameters stay in place."""

    def contents(self) -> Contents:
        """Return the present state, as contents_of() does, without looking at models anew."""
        if not (self._known and all(each.is_in_place for each in self._known)):
            self._known = [ModelState(name, each) for name, each in self._models.items()]
        contents = Contents()
        for each in self._known:
            each.keep(contents)
        pieces = {key: piece for each in self._known for key, piece in each.pieces.items()}
        for name, optimizer in self._optimizers.items():
            OptimizerState(name, optimizer, pieces).keep(contents)
        self._pieces = {key: piece for key, (_, piece) in pieces.items()}
        return contents

    def load(self, version: Version) -> None:
        """Take the state that a version has. Raises CheckpointError if it does not fit."""
        load(self._parts, version, self._group)

    def restoration(self, source: Source) -> Restoration:
        """Plan to take the state from parts that others had."""
        return Restoration(self._parts, source, Ranks(self._group))

    def gradient(self, parameter: Any) -> ShardedTensor | None:
        """Return this rank's part of a gradient; None if there is none."""
        if parameter.grad is None:
            return None
        return ShardedTensor(parameter.grad.data, self._piece(parameter))

    def room_for_gradient(self, parameter: Any, dtype: str) -> ShardedTensor:
        """Return memory for this rank's part of a gradient."""
        data = parameter.data
        values = empty(array_framework(data), tuple(data.shape), dtype)
        return ShardedTensor(values, self._piece(parameter))

    def give_gradient(self, parameter: Any, values: Any) -> None:
        """Let a parameter have these values as its gradient."""
        framework_of(parameter).set_gradient(parameter, values)

    def _piece(self, parameter: Any) -> Piece:
        if id(parameter) not in self._pieces:
            self.contents()
        return self._pieces[id(parameter)]

    def note_flags(self) -> None:
        """Remember the flags with which a step begins."""
        units = (unit for passes in self._passes for unit in passes.units)
        self._options = [(unit, replace(unit.options)) for unit in units]

    def begin_anew(self) -> bool:
        """Drop what is left of passes that were broken off, and return whether this rank has
        another part now, without values. All ranks call it, in their new round."""
        self._known.clear()
        self._pieces.clear()
        for each in self._by_node:
            self._group.session.renew(each, self._group.name)
        groups = dict.fromkeys(each.group for each in self._passes)
        for each in groups:
            forget_consecutive(each)
        nodes = {each: renewed_nodes_of(each) for each in groups}
        moved = [passes.begin_anew(nodes[passes.group]) for passes in self._passes]
        for unit, options in self._options:
            unit.options = replace(options)
        return any(moved)

    @property
    def can_be_cut_anew(self) -> bool:
        """Return whether other numbers of ranks can have other parts: not those of each node."""
        return all(each.group is self._group for each in self._passes)

    @property
    def place(self) -> int:
        """Return a number that ranks have in common which have the same parts of all models."""
        groups = {tuple(each.group.ranks): each.group.rank for each in self._passes}
        is_cut = len(groups) > 1 or len(self._passes[0].group.ranks) == self._group.world_size
        return self._group.rank if is_cut else self._passes[0].group.rank


def load(parts: Mapping[str, Any], version: Version, group: ProcessGroup) -> None:
    """Give parts of a training the state that a version has of them."""
    restoration = Restoration(parts, version, Ranks(group))
    for name, target in restoration.reads:
        version.read(name, target)
    restoration.finish()


def passes_of(models: Iterable[Any]) -> list[FSDPState]:
    """Return the passes of models that are sharded, in the same order on all ranks."""
    found = (each.outermost for model in models for each in shardings_of(model))
    return [*dict.fromkeys(found)]
