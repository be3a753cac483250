"""Protects the state of which each rank has a part alone, so that a lost rank's replacement has it.

The state before each step is copied to the node's memory while that step computes, and the step's
gradients before the ranks vote on it. So whoever dies after a vote leaves the new state, or the old
one and the gradients that lead from it to the new one.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.agreement import Attempt, agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.contract import COMMIT_MEMORY
from torsh_runtime.elastic.memory import CommitMemory
from torsh_runtime.elastic.neighbours import Neighbours, ring
from torsh_runtime.elastic.offers import Offers
from torsh_runtime.elastic.options import give_options, options_of
from torsh_runtime.elastic.own_shards import OwnShards, load, passes_of
from torsh_runtime.elastic.shard_plan import NOTHING, ShardPlan, newest_in_memory, plan
from torsh_runtime.elastic.torchs import is_torchs, torchs_shards
from torsh_runtime.elastic.versions import ALIKE, GRADIENTS, STATE, Version, Versions
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.fsdp.config import ShardingStrategy
from torsh_runtime.parallel.fsdp.fsdp_init import has_host_memory
from torsh_runtime.parallel.fsdp.node_storage import groups_of_nodes, is_by_agents
from torsh_runtime.parallel.fsdp.sharding import shardings_of, shardings_over
from torsh_runtime.parallel.layouts import layouts_by_id
from torsh_runtime.parallel.state import Contents
from torsh_runtime.parallel.state.models import is_model
from torsh_runtime.parallel.state.optimizers import is_optimizer
from torsh_runtime.parallel.state.plain import decode, encode

Bytes = NDArray[np.uint8]
_OPTIONS = "options"
_SAME = (
    "A replacement has models and optimizers as the script makes them before join(): unfreeze "
    "parameters and add groups of them there, not in steps, and set lr=0 for what is to rest"
)


class Protected(Protocol):
    """Gives access to this rank's part of models that are sharded, and of their optimizers."""

    @property
    def place(self) -> int:
        """Return a number that ranks have in common which have the same parts of all models."""

    def contents(self) -> Contents:
        """Return the present state."""

    def load(self, version: Version) -> None:
        """Take the state that a version has. Raises CheckpointError if it does not fit."""

    def gradient(self, parameter: Any) -> Any:
        """Return the values of this rank's part of a gradient; None if there is none."""

    def read_gradient(self, parameter: Any, version: Version, name: str) -> None:
        """Give a parameter the gradient that a version has."""

    def note_flags(self) -> None:
        """Remember the flags with which a step begins."""

    def begin_anew(self) -> None:
        """Drop what is left of passes that were broken off. All ranks call it, in their new
        round."""


class Shards:
    """Protects models of which ranks have parts, and their optimizers, on one rank of a node."""

    def __init__(
        self, models: Mapping[str, Any], optimizers: Mapping[str, Any], group: ProcessGroup
    ) -> None:
        """Find the memory. Raises ConfigError if there is none."""
        memory = CommitMemory.of_agent(os.environ)
        if memory is None:
            raise ConfigError(
                f"tr.elastic.join() keeps shards in the agent's memory, and {COMMIT_MEMORY} is "
                f"unset: leave it as torshrun sets it"
            )
        memory.claim("tr.elastic.join()")
        self._group, self._models, self._optimizers = group, models, optimizers
        torchs = torchs_shards(models, optimizers)
        self._protected: Protected = torchs or OwnShards(models, optimizers, group)
        self._versions = Versions(memory, group.rank, group.world_size)
        self._memory = memory
        self._kept: int = NOTHING
        """The step before which this rank's state is kept, or is being kept."""
        self._sent = self._alike = NOTHING
        """The same of its copy on the next node, and of what all ranks have alike."""
        self._keeps_alike = False
        self._places = [*range(group.world_size)]
        """For each rank a number that it has in common with those that have the same parts."""

    def begin(self, alike: Mapping[str, Any], step: Callable[[], None]) -> int:
        """Take the newest state that the nodes' memories have, of an earlier start of the job, or
        else the present one. Keep it, and return the number of the step before which it is.

        alike: the parts that all ranks have alike. step: as restore() has it.
        """
        self._connect()
        number = max(self._resume(alike, step), 0)
        self._versions.begin(STATE, number, self._protected.contents())
        self._versions.wait()
        self._kept = self._sent = number
        self._group.barrier()
        return number

    def _resumed(self, alike: Mapping[str, Any], step: Callable[[], None]) -> int:
        everybody = range(self._group.world_size)
        kept = self._versions.found(everybody)
        offers = Offers(Ranks(self._group), kept, self._places)
        holdings = offers.holdings([NOTHING] * len(everybody))
        number = newest_in_memory(holdings, offers.numbers(ALIKE))
        if number == NOTHING:
            return number
        self._versions.drop(each for each in kept if each.number > number)
        self._take(plan(holdings, number), offers, step)
        version = offers.fetch(dict.fromkeys(everybody, offers.alike(number)))
        with Attempt() as attempt:  # the program's own load_state_dict() may raise anything
            assert version is not None
            load(alike, version, self._group)
        agree(self._group, "elastic.join()", problem=attempt.error)
        return number

    def _resume(self, alike: Mapping[str, Any], step: Callable[[], None]) -> int:
        try:
            number = self._resumed(alike, step)
        except (CheckpointError, ConfigError):  # or the next start would fail as this one does
            self._versions.clear()
            raise
        if number == NOTHING:
            self._versions.clear()
        return number

    def keep_alike(self, number: int, alike: Callable[[], Contents]) -> None:
        """Keep what all ranks have alike before this step, once on each node."""
        self._protected.note_flags()
        if self._keeps_alike and self._alike != number:
            self._versions.keep(ALIKE, number, alike())
            self._alike = number

    def begin_to_keep(self, number: int) -> None:
        """Begin to keep the present state, unless it is kept, and copied to the next node."""
        self._protected.note_flags()
        if self._kept == self._sent == number:
            return
        self._versions.wait()
        if self._kept != number or not self._versions.begin_to_send(STATE, number):
            self._versions.begin(STATE, number, self._protected.contents())
        self._kept = self._sent = number

    def prepare_commit(self, number: int) -> None:
        """Keep what leads to the state after this step. Raises CheckpointError if memory is too
        short."""
        self._versions.wait()
        contents = Contents()
        for name, parameter in self._trained():
            values = self._protected.gradient(parameter)
            if values is not None:
                whole = Piece.whole(tuple(values.shape))
                contents.tensors[name] = ShardedTensor(values, whole)
        options = [options_of(each) for each in self._optimizers.values()]
        contents.values[_OPTIONS] = encode(options, _OPTIONS, contents.tensors)
        self._versions.keep(GRADIENTS, number, contents)

    def begin_anew(self) -> None:
        """Drop what is left of passes that were broken off. All ranks call it, in their new
        round. Raises ConfigError on all ranks if replacements have made other models."""
        self._check_same()
        self._connect()
        self._protected.begin_anew()

    def _check_same(self) -> None:
        trained = [
            f"{name}/{key} is {'trained' if parameter.requires_grad else 'frozen'}"
            for name, model in self._models.items()
            for key, parameter in model.named_parameters()
        ]
        stepped = [
            f"{name} has {len(group['params'])} parameters in group {number}"
            for name, optimizer in self._optimizers.items()
            for number, group in enumerate(optimizer.param_groups)
        ]
        told = {"models": trained, "optimizers": stepped}
        agree(self._group, "elastic.join() after a loss", told, advice=_SAME)

    def restore(self, live: Sequence[int], step: Callable[[], None]) -> None:
        """Let ranks that lack the newest state take it from memory. All ranks call it.

        Args:
            live: For each rank the number of the state that its process has whole, or NOTHING.
            step: Lets the optimizers step, and drops the gradients.

        Raises:
            CheckpointError: On all ranks if a shard is nowhere whole.
        """
        number = max(live)
        lost = {place for place, each in zip(self._places, live, strict=True) if each != number}
        kept = self._versions.found([r for r, each in enumerate(self._places) if each in lost])
        offers = Offers(Ranks(self._group), kept, self._places)
        found = plan(offers.holdings(live))
        if found.lost:
            raise CheckpointError(
                f"the shards of rank(s) {', '.join(map(str, found.lost))} are whole in no memory: "
                f"start the job again from a checkpoint"
            )
        # Their step is repeated, maybe with other values.
        self._versions.drop(each for each in kept if each.number > number)
        self._take(found, offers, step)

    def _take(self, found: ShardPlan, offers: Offers, step: Callable[[], None]) -> None:
        """Let the ranks that are not live have the state, from memory."""
        number = found.number
        needs = {rank: offers.key(STATE, rank, number) for rank in found.loading}
        needs |= {rank: offers.key(STATE, rank, number - 1) for rank in found.stepping}
        last = {rank: offers.key(GRADIENTS, rank, number - 1) for rank in found.stepping}
        with Attempt() as attempt:
            state = offers.fetch(needs)
        with attempt:
            gradients = offers.fetch(last)
            if state is not None:
                self._protected.load(state)
            if gradients is not None:
                self._step(gradients, step)
            elif state is not None:
                self._kept = number
        agree(self._group, "elastic.join()", problem=attempt.error)

    def _connect(self) -> None:
        """Prepare to copy to the next node, if there is one, and other nodes do not have the same
        parts anyway. All ranks call it."""
        own = np.array([_node(), self._protected.place], np.int64)
        nodes, self._places = self._group.all_gather_numbers(own).T.tolist()
        self._keeps_alike = nodes.index(_node()) == self._group.rank
        self._sent, self._alike = NOTHING, NOTHING
        found, ranks = ring(nodes, self._group.rank), Ranks(self._group)
        has_twins = len({*self._places}) < len(self._places)
        if found is None and len({*nodes}) > 1 and not has_twins and self._group.rank == 0:
            warnings.warn(
                "nodes have different numbers of workers, so that no node has copies of another "
                "one's shards: what is lost with a node is lost",
                RuntimeWarning,
                stacklevel=2,
            )
        self._versions.copy_to({})
        if found is not None and not has_twins:
            self._versions.copy_to(
                {
                    GRADIENTS: Neighbours(ranks, self._memory, *found),
                    STATE: Neighbours(ranks.apart(), self._memory, *found),
                }
            )

    def _step(self, gradients: Version, step: Callable[[], None]) -> None:
        """Let the optimizers step with these gradients, as they did or were about to."""
        for name, parameter in self._trained():
            parameter.grad = None
            if name in gradients.manifest.tensors:
                self._protected.read_gradient(parameter, gradients, name)
        options = decode(gradients.values[_OPTIONS], None, gradients)
        for optimizer, given in zip(self._optimizers.values(), options, strict=True):
            give_options(optimizer, given)
        step()

    def _trained(self) -> Iterator[tuple[str, Any]]:
        """Yield the optimizers' parameters, each with the name of its gradient."""
        for name, optimizer in self._optimizers.items():
            parameters = (each for group in optimizer.param_groups for each in group["params"])
            for number, parameter in enumerate(parameters):
                yield f"{name}/{number}", parameter


def _node() -> int:
    return int(os.environ.get("GROUP_RANK", "0"))


def sharded_in(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models of which ranks have parts and their optimizers, by name.

    Ranks have other models alike, such as a small discriminator or a moving average. An optimizer
    of models of both kinds brings all of its models with it, as its state has their names.
    """
    models = {name: each for name, each in named.items() if is_model(each)}
    optimizers = {name: each for name, each in named.items() if is_optimizer(each)}
    found = {name: each for name, each in models.items() if is_sharded(each)}
    size = -1
    while len(found) != size:
        size = len(found)
        for name, optimizer in optimizers.items():
            groups = optimizer.param_groups
            stepped = {id(each) for group in groups for each in group["params"]}
            of_it = {n: each for n, each in models.items() if not stepped.isdisjoint(_ids(each))}
            if found.keys() & of_it.keys():
                found |= {**of_it, name: optimizer}
    return found


def is_sharded(model: Any) -> bool:
    """Return whether ranks have parts of this model, by this library or by torch."""
    return bool(shardings_of(model)) or is_torchs(model)


def check_one_kind(models: Iterable[Any]) -> None:
    """Raise ConfigError if models are sharded by this library, and others by torch."""
    kinds = {is_torchs(each) for each in models if is_sharded(each)}
    if len(kinds) > 1:
        raise ConfigError(
            "tr.elastic.join() was given models that tr has sharded, and others that torch's "
            "fully_shard() has: use one of the two for all"
        )


def _ids(model: Any) -> set[int]:
    return {id(parameter) for _, parameter in model.named_parameters()}


def problem_of_sharded(model: Any, group: ProcessGroup | None) -> str:
    """Return why a sharded model cannot be recovered; "" if it can."""
    if layouts_by_id(model):
        return "it has layouts on a mesh as well"
    for each in shardings_of(model):
        is_hybrid = each.config.sharding_strategy is ShardingStrategy.HYBRID_SHARD
        if is_hybrid and group is not None and not is_by_agents(group, each.group):
            return (
                'its sharding_strategy is "hybrid", over other groups than the ranks of each agent '
                "of torshrun: leave process_group and mesh out, and start one agent on each host"
            )
        if not is_hybrid and each.group is not group:
            return "it is not sharded over the default group: leave process_group and mesh out"
        if each.config.offloads or each.config.activation_offload:
            return "it is offloaded to the memory of the CPU: leave that out"
        if not all(has_host_memory(parameter) for u in each.units for parameter in u.parameters):
            return "it is on a GPU"
        if any(flat.is_owned for unit in each.units for flat, _ in unit.laid):
            return "its optimizer does not compute elementwise, and single ranks own parameters"
    return ""


def forgotten(models: Iterable[Any], group: ProcessGroup | None) -> Any:
    """Return a model that is sharded over the group and none of these or within one; None if there
    is no such model."""
    known = passes_of(models)

    def found() -> Any:
        groups = [] if group is None else [group, *groups_of_nodes(group)]
        live = [each for found in groups for each in shardings_over(found)]
        return next((each.model for each in live if each.outermost not in known), None)

    if found() is not None:
        gc.collect()  # it may be gone, and only its cycles be left
    return found()


def problem_of_stepping(optimizer: Any) -> str:
    """Return why an optimizer of sharded models cannot be recovered; "" if it can."""
    torchs = sys.modules.get("torsh_runtime.integrations.torch.optimizers")
    if torchs is None or not torchs.needs_ranks(optimizer):
        return ""
    return (
        f"{type(optimizer).__name__} is none of torch's optimizers that compute elementwise, as "
        f"AdamW and SGD, and needs other ranks in its first step"
    )
