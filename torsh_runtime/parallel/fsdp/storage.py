"""Stores flat parameters: shared by the ranks of a machine or node, gathered, or replicated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast
from weakref import WeakKeyDictionary

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.subgroups import split_group
from torsh_runtime.framework import Values
from torsh_runtime.framework.models import common_memory
from torsh_runtime.layout import even_cuts
from torsh_runtime.parallel.fsdp.flat_parameter import FlatParameter
from torsh_runtime.parallel.fsdp.fsdp_param import StorageStrategy, Stored
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.regions.arrays import copied


class CommonStorage(StorageStrategy):
    """Shares the flat parameter among all ranks, which are on one machine. Each changes only its
    own part, so to unshard is to know that all have done that. One barrier tells it for all units.

    A gradient is reduced as it comes, straight from where it was computed: each rank reduces an
    equal part of it and writes that to its place, whoever owns it.
    """

    is_common = reduces_each = averages_late = True

    def __init__(self, stored: Stored, whole: Any) -> None:
        super().__init__(stored)
        flat = self._flat
        self.whole = whole
        self.shard = self._own = whole[flat.start : flat.end]
        self._count(flat.own_size, self._precision.computed)
        if self._precision.own != self._precision.computed:
            self.shard = self._new(flat.own_size, self._precision.own)
            self._count(flat.own_size, self._precision.own)
        self._unsettled: dict[int, bool] = {}

    def remade(self, flat: FlatParameter) -> CommonStorage:
        like, group = flat.parameters[0], self._group
        whole = common_memory(like, flat.size, group, flat.precision.computed)
        return CommonStorage(self._described(flat), whole)

    def publish(self) -> None:
        if self.shard is not self._own:
            self._own[...] = self.shard

    def unshard(self) -> None:
        self.ledger.gathers += 1

    def prepare(self) -> None:
        self._unsettled.clear()
        if self.gradients is not None:
            return
        flat, dtypes = self._flat, self._precision
        made = common_memory(flat.parameters[0], flat.size, self._group, dtypes.reduced)
        self._all = cast(Values, made)  # as for `whole`
        self.gradients = self._reduced = self._all[flat.start : flat.end]
        self._count(flat.own_size, dtypes.reduced)
        # Only its owner knows whether an optimizer has removed a gradient, and so whether to add.
        if flat.is_owned or dtypes.reduced != dtypes.gradients:
            self.gradients = self._new(flat.own_size, dtypes.gradients)
            self._count(flat.own_size, dtypes.gradients)

    def take(self, number: int, gradient: Any, adds: bool, is_freed: bool) -> None:
        start, size = self._flat.starts[number], self._flat.sizes[number]
        if self.gradients is not self._reduced:  # which settle() adds to
            is_again = number in self._unsettled
            self._unsettled.setdefault(number, adds)
            adds = is_again
        values = self._framework.cast(gradient.reshape(-1), self._precision.reduced)
        self.ledger.touch(self._bytes(size, self._precision.computed))
        cuts = even_cuts(size, self._group.world_size)
        parts = [values[slice(*ends)] for ends in pairwise(cuts)]
        rank = self._group.rank
        place = self._all[start + cuts[rank] : start + cuts[rank + 1]]
        target = copied(place) if adds else place
        self._group.reduce_scatter(target, parts, ReduceOp.AVG)
        if adds:
            place += target
        self.ledger.scatters += 1

    def settle(self) -> None:
        for number, adds in self._unsettled.items():
            own = slice(*self._flat.span(number))
            _write(self.gradients[own], self._reduced[own], adds)
        self._unsettled.clear()


class StagedStorage(StorageStrategy):
    """Puts gradients end to end before they are reduced together."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        self._staged: Any = None
        self._came: set[int] = set()
        self._reducing: list[tuple[Any, Any, bool, Any]] = []

    def prepare(self) -> None:
        self._reducing.clear()
        self._came.clear()
        if self.gradients is None:
            self.gradients = self._new(self._flat.own_size, self._precision.gradients)
            self._count(self._flat.own_size, self._precision.gradients)

    def take(self, number: int, gradient: Any, adds: bool, is_freed: bool) -> None:
        if self._staged is None:
            self._staged = self._new_staged()
        self.ledger.touch(self._bytes(self._flat.sizes[number], self._precision.computed))
        is_again = number in self._came  # as in a checkpoint's own backward passes
        _write(self._staged_of(number), gradient.reshape(-1), is_again)
        self._came.add(number)

    def wait(self) -> None:
        for work, target, adds, _ in self._reducing:
            work.wait()
            if adds or target is not self.gradients:
                _write(self.gradients, target, adds)
            self._give(self._flat.size, self._precision.reduced)
        self._reducing.clear()

    def _new_staged(self) -> Any:
        """Return memory for all gradients on this rank, end to end."""
        self._count(self._flat.size, self._precision.reduced)
        return self._new(self._flat.size, self._precision.reduced)

    def _taken(self, missing: Sequence[int], fresh: Sequence[int]) -> Any:
        """Return all gradients on this rank, end to end."""
        for number in fresh:
            self.gradients[slice(*self._flat.span(number))] = 0
        for number in missing:
            self._staged_of(number)[...] = 0
        staged, self._staged = self._staged, None
        self._came.clear()
        self.ledger.scatters += 1
        return staged

    def _staged_of(self, number: int) -> Any:
        start = self._flat.starts[number]
        return self._staged[start : start + self._flat.sizes[number]]


_CONSECUTIVE: WeakKeyDictionary[ProcessGroup, dict[int, ProcessGroup]] = WeakKeyDictionary()


def consecutive(group: ProcessGroup, ranks: int) -> ProcessGroup | None:
    """Return the group of this rank among so many consecutive ranks of `group`, or None if they do
    not divide it. All ranks call it first for the same number; models share such groups."""
    if group.is_unmet or group.world_size % ranks or group.world_size == ranks:
        return None
    found = _CONSECUTIVE.setdefault(group, {})
    if ranks not in found:
        starts = range(0, group.world_size, ranks)
        found[ranks] = group_of(split_group(group, [range(s, s + ranks) for s in starts]))
    return found[ranks]


def forget_consecutive(group: ProcessGroup) -> None:
    """Forget the groups that consecutive() has made of a group that was configured anew: they have
    ended with its former connections, and may have had other members."""
    _CONSECUTIVE.pop(group, None)


class GatheredStorage(StagedStorage):
    """Gathers the flat parameter on each rank when it is needed, over any connection."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        self.whole = self._make_whole()
        self.shard = self._make_shard()
        self._parts = self._flat.parts(self.whole)
        self._is_here = True
        self._is_kept = False
        """Whether it is here only because a graph needs values. Other ranks may have freed it, so
        that all gather it again."""
        self._holders: int | None = None
        """How many arrays have the memory of `whole` while nothing computes with it."""
        self._gathering: Any = None
        self._divided: tuple[ProcessGroup, Any] | None = None
        """The ranks of reshard_to(), and this rank's part among them."""
        self._count(self._whole_size, self._precision.computed)
        self._count(self._flat.own_size, self._precision.own)

    def begin_unshard(self) -> None:
        if self._gathering is not None or (self._is_here and not self._is_kept):
            return
        if not self._is_here:
            self._allocate()
            self._count(self._whole_size, self._precision.computed)
        self._is_kept = False
        self._gathering = self._begin_gather() if self._divided is None else self._gather_divided()
        self.ledger.gathers += 1

    def unshard(self) -> None:
        self.begin_unshard()
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering, self._is_here = None, True
            self._drop_divided()

    def reshard(self) -> None:
        if self._holders is None:  # all views of it are made, and no pass has begun
            self._holders = self._framework.holders(self.whole)
        if self._gathering is not None:
            self.unshard()
        if self._is_here:
            self._release()
            self._give(self._whole_size, self._precision.computed)
            self._is_here = self._is_kept = False
        self._drop_divided()

    def reshard_to(self, ranks: int) -> None:
        group = consecutive(self._group, ranks)
        if group is None or not self._is_here:
            self.reshard()
            return
        start, end = even_cuts(self._flat.size, ranks)[group.rank : group.rank + 2]
        own = copied(self.whole[start:end])
        self.reshard()
        self._divided = group, own
        self._count(end - start, self._precision.computed)

    def _gather_divided(self) -> Any:
        group, own = cast(tuple[ProcessGroup, Any], self._divided)
        if self._flat.size % group.world_size == 0:
            return group.all_gather_into_tensor(self.whole, own, async_op=True)
        ends = pairwise(even_cuts(self._flat.size, group.world_size))
        return group.all_gather([self.whole[slice(*each)] for each in ends], own, async_op=True)

    def _drop_divided(self) -> None:
        if self._divided is not None:
            self._give(len(self._divided[1]), self._precision.computed)
            self._divided = None

    def reshard_early(self) -> None:
        if self._is_here and self.is_held():
            self._is_kept = True
        else:
            self.reshard()

    def is_held(self) -> bool:
        """Return whether a graph has values in the memory of `whole`: one that is retained has
        some, and so has one that computes with detached values of a parameter."""
        return self._holders is None or self._framework.holders(self.whole) > self._holders

    def finish(
        self, missing: Sequence[int], adds: bool, fresh: Sequence[int], is_over: bool
    ) -> None:
        staged = self._taken(missing, fresh if adds else ())
        target = self._target(adds)
        self._reducing.append((self._reduce(target, staged), target, adds, staged))

    @property
    def _whole_size(self) -> int:
        """Return the number of elements of `whole` whose memory this rank counts."""
        return self._flat.size

    def _make_whole(self) -> Any:
        return self._new(self._flat.size, self._precision.computed)

    def _make_shard(self) -> Any:
        return self._new(self._flat.own_size, self._precision.own)

    def _begin_gather(self) -> Any:
        own = self.shard
        if self._precision.own != self._precision.computed:
            own = self._parts[self._flat.part]
            own[...] = self.shard
        return self._gather(own)

    def _target(self, adds: bool) -> Any:
        """Return where this rank's part of the reduced gradients goes."""
        if adds or self._precision.reduced != self._precision.gradients:
            return self._new(self._flat.own_size, self._precision.reduced)
        return self.gradients

    def _allocate(self) -> None:
        self._framework.allocate(self.whole)

    def _release(self) -> None:
        self._framework.release(self.whole)

    def _gather(self, own: Any) -> Any:
        """Begin to make it whole from all ranks' parts, of which this rank's is `own`."""
        return self._gather_into(self.whole, own, async_op=True)

    def _reduce(self, target: Any, staged: Any) -> Any:
        """Begin to average this rank's part of the gradients."""
        parts = self._flat.parts(staged)
        return self._group.reduce_scatter(target, parts, ReduceOp.AVG, async_op=True)


class ReplicatedStorage(StagedStorage):
    """Keeps all of a flat parameter on every rank."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        size, dtypes = self._flat.size, self._precision
        self.whole = self.shard = self._new(size, dtypes.computed)
        self._count(size, dtypes.computed)
        if dtypes.own != dtypes.computed:
            self.shard = self._new(size, dtypes.own)
            self._count(size, dtypes.own)

    def publish(self) -> None:
        if self.shard is not self.whole:
            self.whole[...] = self.shard

    def full(self) -> Any:
        return copied(self.shard)

    def finish(
        self, missing: Sequence[int], adds: bool, fresh: Sequence[int], is_over: bool
    ) -> None:
        staged = self._taken(missing, fresh if adds else ())
        work = self._group.all_reduce(staged, ReduceOp.AVG, async_op=True)
        self._reducing.append((work, staged, adds, staged))


def _write(target: Values, source: Values, adds: bool) -> None:
    """Copy values, or add them to what is there."""
    if adds:
        target += source
    else:
        target[...] = source
