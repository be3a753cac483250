"""Where a flat parameter is whole, where each rank has its part, and how gradients get there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.layout import even_cuts
from torsh_runtime.modules.base import ModuleAdapter
from torsh_runtime.parallel.fsdp.flat import FlatParameter
from torsh_runtime.parallel.fsdp.stats import Ledger


class Memory(ABC):
    """Of one flat parameter.

    whole: all elements, to be looked at between unshard() and reshard() only. shard: this rank's.
    gradients: this rank's, of the last backward passes; None before the first.
    """

    is_common = False
    """Whether the ranks have one `whole`, so that all have to have done with it before an owner
    may change its part."""

    whole: Any
    shard: Any

    def __init__(
        self, adapter: ModuleAdapter[Any], flat: FlatParameter, group: ProcessGroup, ledger: Ledger
    ) -> None:
        self._adapter, self._flat, self._group, self._ledger = adapter, flat, group, ledger
        self.gradients: Any = None

    @abstractmethod
    def begin_unshard(self) -> None:
        """Begin to make it whole; all ranks call it in the same order."""

    @abstractmethod
    def unshard(self) -> None:
        """Wait until it is whole."""

    @abstractmethod
    def reshard(self) -> None:
        """Let go of what is not this rank's."""

    @abstractmethod
    def prepare(self) -> None:
        """Have memory for gradients; all ranks call it in the same order."""

    @abstractmethod
    def take(self, number: int, gradient: Any, adds: bool) -> None:
        """A parameter's gradient on this rank has come. adds: to what is there already."""

    @abstractmethod
    def finish(self, missing: list[int], adds: bool) -> None:
        """All gradients have come but these, which count as zeros: begin to reduce them."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until this rank's gradients are reduced."""


class CommonMemory(Memory):
    """All ranks are on one machine and have the flat parameter once. Each changes its own part
    only, so to unshard is to know that all have done that, of which one barrier tells for all
    units.

    A gradient is reduced as it comes, straight from where it was computed: each rank reduces an
    equal part of it and writes that to its place, whoever owns it.
    """

    is_common = True

    def __init__(
        self,
        adapter: ModuleAdapter[Any],
        flat: FlatParameter,
        group: ProcessGroup,
        ledger: Ledger,
        whole: Any,
    ) -> None:
        super().__init__(adapter, flat, group, ledger)
        self.whole = whole
        self.shard = adapter.slice(whole, flat.start, flat.end)
        ledger.take(flat.own_bytes)

    def begin_unshard(self) -> None:
        """The barrier has told."""

    def unshard(self) -> None:
        self._ledger.gathers += 1

    def reshard(self) -> None:
        """Nothing is to be let go of."""

    def finish(self, missing: list[int], adds: bool) -> None:
        """All is reduced as it comes."""

    def wait(self) -> None:
        """It has been waited for."""

    def prepare(self) -> None:
        if self.gradients is None:
            like = self._flat.parameters[0]
            self._all = self._adapter.common(like, self._flat.size, self._group)
            self.gradients = self._adapter.slice(self._all, self._flat.start, self._flat.end)
            self._ledger.take(self._flat.own_bytes)

    def take(self, number: int, gradient: Any, adds: bool) -> None:
        adapter, start = self._adapter, self._flat.starts[number]
        values = adapter.flattened(gradient)
        self._ledger.touch(self._flat.sizes[number] * self._flat.itemsize)
        cuts = even_cuts(self._flat.sizes[number], self._group.world_size)
        parts = [adapter.slice(values, *ends) for ends in pairwise(cuts)]
        rank = self._group.rank
        place = adapter.slice(self._all, start + cuts[rank], start + cuts[rank + 1])
        target = adapter.clone(place) if adds else place
        self._group.reduce_scatter(target, parts, ReduceOp.AVG)
        if adds:
            adapter.add(place, target)
        self._ledger.scatters += 1


class GatheredMemory(Memory):
    """Each rank gathers the flat parameter when it is needed, over whatever is between them."""

    def __init__(
        self, adapter: ModuleAdapter[Any], flat: FlatParameter, group: ProcessGroup, ledger: Ledger
    ) -> None:
        super().__init__(adapter, flat, group, ledger)
        like = flat.parameters[0]
        self.whole = adapter.releasable(like, flat.size)
        self.shard = adapter.releasable(like, flat.end - flat.start)
        self._parts = flat.parts(adapter, self.whole)
        self._is_here = True
        self._gathering: Any = None
        self._staged: Any = None
        self._reducing: list[Any] = []
        ledger.take(flat.num_bytes + flat.own_bytes)

    def begin_unshard(self) -> None:
        if self._gathering is not None or self._is_here:
            return
        self._adapter.allocate(self.whole)
        self._ledger.take(self._flat.num_bytes)
        values = self._adapter.values
        outputs = [values(part) for part in self._parts]
        self._gathering = self._group.all_gather(outputs, values(self.shard), async_op=True)
        self._ledger.gathers += 1

    def unshard(self) -> None:
        self.begin_unshard()
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering, self._is_here = None, True

    def reshard(self) -> None:
        if self._gathering is not None:
            self.unshard()
        if self._is_here:
            self._adapter.release(self.whole)
            self._ledger.give(self._flat.num_bytes)
            self._is_here = False

    def prepare(self) -> None:
        if self.gradients is None:
            self.gradients = self._like_shard()
            self._ledger.take(self._flat.own_bytes)

    def take(self, number: int, gradient: Any, adds: bool) -> None:
        if self._staged is None:
            self._staged = self._adapter.releasable(self._flat.parameters[0], self._flat.size)
            self._ledger.take(self._flat.num_bytes)
        self._ledger.touch(self._flat.sizes[number] * self._flat.itemsize)
        values = self._adapter.flattened(gradient)
        self._adapter.copy(self._staged_of(number), values)

    def finish(self, missing: list[int], adds: bool) -> None:
        for number in missing:
            self._adapter.fill(self._staged_of(number), 0)
        target = self._like_shard() if adds else self.gradients
        parts = self._flat.parts(self._adapter, self._staged)
        work = self._group.reduce_scatter(target, parts, ReduceOp.AVG, async_op=True)
        self._reducing.append((work, target, adds, self._staged))
        self._staged = None
        self._ledger.scatters += 1

    def wait(self) -> None:
        for work, target, adds, _ in self._reducing:
            work.wait()
            if adds:
                self._adapter.add(self.gradients, target)
            self._ledger.give(self._flat.num_bytes)
        self._reducing.clear()

    def _staged_of(self, number: int) -> Any:
        start = self._flat.starts[number]
        return self._adapter.slice(self._staged, start, start + self._flat.sizes[number])

    def _like_shard(self) -> Any:
        return self._adapter.clone(self.shard)


class ReplicatedMemory(GatheredMemory):
    """Every rank has all of it."""

    def __init__(
        self, adapter: ModuleAdapter[Any], flat: FlatParameter, group: ProcessGroup, ledger: Ledger
    ) -> None:
        Memory.__init__(self, adapter, flat, group, ledger)
        self.whole = self.shard = adapter.releasable(flat.parameters[0], flat.size)
        self._staged: Any = None
        self._reducing: list[Any] = []
        ledger.take(flat.num_bytes)

    def begin_unshard(self) -> None:
        """It is whole."""

    def unshard(self) -> None:
        """It is whole."""

    def reshard(self) -> None:
        """It stays whole."""

    def finish(self, missing: list[int], adds: bool) -> None:
        for number in missing:
            self._adapter.fill(self._staged_of(number), 0)
        staged, self._staged = self._staged, None
        work = self._group.all_reduce(staged, ReduceOp.AVG, async_op=True)
        self._reducing.append((work, staged, adds, staged))
        self._ledger.scatters += 1

    def wait(self) -> None:
        for work, staged, adds, _ in self._reducing:
            work.wait()
            (self._adapter.add if adds else self._adapter.copy)(self.gradients, staged)
            self._ledger.give(self._flat.num_bytes)
        self._reducing.clear()
