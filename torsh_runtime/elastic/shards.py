"""Protects the state of which each rank has a part alone, so that a lost rank's replacement has it.

The state before each step is copied to the node's memory while that step computes, and the step's
gradients before the ranks vote on it. So whoever dies after a vote leaves the new state, or the old
one and the gradients that lead from it to the new one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.checkpoint.pieces import PieceReader
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.agreement import Attempt, agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.contract import COMMIT_MEMORY
from torsh_runtime.elastic.memory import CommitMemory
from torsh_runtime.elastic.neighbours import Neighbours, ring
from torsh_runtime.elastic.offers import Offers
from torsh_runtime.elastic.options import give_options, options_of
from torsh_runtime.elastic.outline import OUTLINE, Outline
from torsh_runtime.elastic.own_shards import OwnShards, load
from torsh_runtime.elastic.protected import Protected
from torsh_runtime.elastic.resharding import Way, WholeVersion, way_to
from torsh_runtime.elastic.shard_plan import NOTHING, ShardPlan, newest_in_memory, plan
from torsh_runtime.elastic.torchs import torchs_shards
from torsh_runtime.elastic.versions import ALIKE, GRADIENTS, STATE, Key, Version, Versions
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.parallel.state import Contents
from torsh_runtime.parallel.state.contents import NotedReads
from torsh_runtime.parallel.state.plain import decode, encode

Bytes = NDArray[np.uint8]
_OPTIONS = "options"
_SAME = (
    "A replacement has models and optimizers as the script makes them before join(): unfreeze "
    "parameters and add groups of them there, not in steps, and set lr=0 for what is to rest"
)


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
        self._is_void = False
        """Whether this rank has another part than before, whose values it has not got yet."""
        self._memories: set[int] = set()
        """The memories of the nodes of the present round."""
        self._outline = Outline(models, optimizers)
        self._keeps_alike = False
        self._places = [*range(group.world_size)]
        """For each rank a number that it has in common with those that have the same parts."""

    @property
    def can_be_cut_anew(self) -> bool:
        """Return whether other numbers of ranks can have other parts."""
        return self._protected.can_be_cut_anew

    def begin(self, alike: Mapping[str, Any], step: Callable[[], None]) -> int:
        """Take the newest state that the nodes' memories have, of an earlier start of the job, or
        else the present one. Keep it, and return the number of the step before which it is.

        alike: the parts that all ranks have alike. step: as restore() has it.
        """
        self._connect()
        told = Ranks(self._group).numbers([self._memory.identity])
        self._memories = {each for (each,) in told}
        number = max(self._resume(alike, step), 0)
        self._versions.begin(STATE, number, self._protected.contents())
        self._versions.wait()
        self._kept = self._sent = number
        self._group.barrier()
        return number

    def _resumed(self, alike: Mapping[str, Any], step: Callable[[], None]) -> int:
        everybody = range(self._group.world_size)
        kept = self._versions.found()
        offers = Offers(Ranks(self._group), kept, self._places)
        holdings, before = offers.holdings([NOTHING] * len(everybody)), offers.numbers(ALIKE)
        number = newest_in_memory(holdings, before)
        newest = max((n for n in before if self._way_to(n, offers)), default=NOTHING)
        if max(number, newest) == NOTHING:
            return NOTHING
        version = offers.fetch(dict.fromkeys(everybody, offers.alike(max(number, newest))))
        with Attempt() as attempt:
            assert version is not None
            self._outline.check(version.values.get(OUTLINE, {}), _SAME)
        agree(self._group, "elastic.join()", problem=attempt.error)
        self._versions.drop_from(max(number, newest))
        if newest > number:
            number = newest
            self._cut_anew(number, offers, kept, step)
        else:
            self._take(plan(holdings, number), offers, step)
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
            contents = alike()
            contents.values[OUTLINE] = self._outline.present()
            self._versions.keep(ALIKE, number, contents)
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
            gradient = self._protected.gradient(parameter)
            if gradient is not None:
                contents.tensors[name] = gradient
        options = [options_of(each) for each in self._optimizers.values()]
        contents.values[_OPTIONS] = encode(options, _OPTIONS, contents.tensors)
        self._versions.keep(GRADIENTS, number, contents)

    def begin_anew(self) -> None:
        """Drop what is left of passes that were broken off. All ranks call it, in their new
        round. Raises ConfigError on all ranks if replacements have made other models."""
        self._check_same()
        self._forget_rounds_of_others()
        self._connect()
        self._is_void |= self._protected.begin_anew()

    def _forget_rounds_of_others(self) -> None:
        """Forget what the memory of a node has that was not in the last round, unless the job has
        just begun: the others may have repeated those steps with other values."""
        ranks, known = Ranks(self._group), self._memories
        present = [each for (each,) in ranks.numbers([self._memory.identity])]
        told = ranks.numbers([int(each in known) for each in present])
        if not any(row[ranks.rank] for row in told):
            self._versions.clear()
        self._memories = {*present}

    def _check_same(self) -> None:
        told = self._outline.described()
        agree(self._group, "elastic.join() after a loss", told, advice=_SAME)

    def restore(self, number: int, is_whole: bool, step: Callable[[], None]) -> None:
        """Let ranks that lack the state before step `number` take it from memory. All ranks call
        it, and one at least has that state.

        Args:
            number: The number of the step.
            is_whole: Whether this process has the state, unless ranks have other parts now.
            step: Lets the optimizers step, and drops the gradients.

        Raises:
            CheckpointError: On all ranks if a shard is nowhere whole.
        """
        ranks = Ranks(self._group)
        self._versions.drop_from(number)
        own = number if is_whole and not self._is_void else NOTHING
        live = [each for (each,) in ranks.numbers([own])]
        if all(each == number for each in live):
            return
        lost = {place for place, each in zip(self._places, live, strict=True) if each != number}
        kept = self._versions.found([r for r, each in enumerate(self._places) if each in lost])
        offers = Offers(ranks, kept, self._places)
        found = plan(offers.holdings(live), number)
        if found.lost:
            kept = self._versions.found()
            offers = Offers(ranks, kept, self._places)
            if self._way_to(number, offers) is None:
                raise CheckpointError(
                    f"the shards of rank(s) {', '.join(map(str, found.lost))} are whole in no "
                    f"memory: start the job again from a checkpoint"
                )
            self._cut_anew(number, offers, kept, step)
        else:
            self._take(found, offers, step)
        self._is_void = False

    def _way_to(self, number: int, offers: Offers) -> Way | None:
        return way_to(number, offers.every) if self.can_be_cut_anew else None

    def _cut_anew(
        self, number: int, offers: Offers, kept: Mapping[Key, Version], step: Callable[[], None]
    ) -> None:
        """Let all ranks have the state from parts that other ranks had."""
        way, ranks = self._way_to(number, offers), Ranks(self._group)
        assert way is not None
        state = WholeVersion(ranks, offers, kept, way.states)
        self._kept = NOTHING
        with Attempt() as attempt:
            restoration = self._protected.restoration(state.source)
        agree(self._group, "elastic.join()", problem=attempt.error)
        state.read(restoration.reads)
        with attempt:
            restoration.finish()
        agree(self._group, "elastic.join()", problem=attempt.error)
        if way.gradients:
            gradients = WholeVersion(ranks, offers, kept, way.gradients)
            self._step(gradients.source, gradients.read, step)

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
                self._step(gradients, gradients.read_all, step)
            elif state is not None:
                self._kept = number
        agree(self._group, "elastic.join()", problem=attempt.error)

    def _connect(self) -> None:
        """Prepare to copy to the next node, if there is one, and other nodes do not have the same
        parts anyway. All ranks call it."""
        own = np.array([_node(), self._protected.place], np.int64)
        nodes, self._places = self._group.all_gather_numbers(own).T.tolist()
        self._versions.move(self._group.rank, self._group.world_size)
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

    def _step(
        self,
        gradients: PieceReader,
        read: Callable[[Sequence[tuple[str, ShardedTensor]]], None],
        step: Callable[[], None],
    ) -> None:
        """Let the optimizers step with these gradients, as they did or were about to."""
        noted, rooms = NotedReads(gradients), []
        for name, parameter in self._trained():
            parameter.grad = None
            if name in gradients.manifest.tensors:
                room = self._protected.room_for_gradient(parameter, gradients.kind(name)[0])
                noted.read(name, room)
                rooms.append((parameter, room))
        options = decode(gradients.values[_OPTIONS], None, noted)
        read(noted.reads)
        for parameter, room in rooms:
            self._protected.give_gradient(parameter, room.values)
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
