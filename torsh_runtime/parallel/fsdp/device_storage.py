"""Stores flat parameters on GPUs: whole ones for a moment, and what is this rank's there or in the
memory of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.parallel.fsdp.flat_parameter import FlatParameter
from torsh_runtime.parallel.fsdp.fsdp_param import Stored
from torsh_runtime.parallel.fsdp.registered_slots import RegisteredSlots
from torsh_runtime.parallel.fsdp.storage import GatheredStorage

_LARGE = 1 << 20
"""Bytes of a gradient that is reduced from where a backward pass has put it."""


class DeviceStorage(GatheredStorage):
    """Gathers and reduces a flat parameter in one operation each, if its parts are equally large.

    Gradients are reduced from the memory of `whole` where nothing needs the values any more, so
    they take no memory of their own. This rank's have memory only while parameters have them.
    """

    drops_gradients = overwrites = True

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        self.shard[...] = 0  # padding, too
        self._held: dict[int, Any] = {}
        self._slots: RegisteredSlots | None = None
        self._is_overwritten = False
        """Whether gradients are being reduced from the memory of `whole`."""

    def remade(self, flat: FlatParameter) -> Self:
        made = super().remade(flat)
        made.allocate_in(self._slots)
        return made

    def allocate_in(self, slots: RegisteredSlots | None) -> None:
        self._slots = slots

    def prepare(self) -> None:
        self._reducing.clear()
        self._came.clear()
        self._let_go_of_held()
        self._free_overwritten()

    def made_gradients(self) -> Any:
        if self.gradients is None:
            self.gradients = self._new(self._flat.own_size, self._precision.gradients)
            self._count(self._flat.own_size, self._precision.gradients)
        return self.gradients

    def drop_gradients(self) -> None:
        if self.gradients is not None and not self._reducing:  # as if a pass was broken off
            self.gradients = None
            self._give(self._flat.own_size, self._precision.gradients)

    def begin_unshard(self) -> None:
        if self._is_overwritten:
            self.wait()
        super().begin_unshard()

    def take(self, number: int, gradient: Any, adds: bool, is_freed: bool) -> None:
        is_alike = self._precision.reduced == self._precision.computed
        if not (is_freed and is_alike) or self._staged is not None:
            super().take(number, gradient, adds, is_freed)
            return
        if number in self._held:  # as in a checkpoint's own backward passes
            self._held[number] += gradient.reshape(-1)
        else:
            self._held[number] = gradient.reshape(-1)
            self._count(self._flat.sizes[number], self._precision.reduced)

    def finish(
        self, missing: Sequence[int], adds: bool, fresh: Sequence[int], is_over: bool
    ) -> None:
        if self._held:
            self._stage(is_over)
        super().finish(missing, adds, fresh, is_over)

    def wait(self) -> None:
        super().wait()
        self._free_overwritten()

    def _stage(self, is_over: bool) -> None:
        """Put gradients that were held end to end, if they are not."""
        [first, *others] = self._held.values()
        if not others and len(first) == self._flat.size and first.nbytes >= _LARGE:
            self._staged, self._held = first, {}
            return
        if self._staged is None and is_over and self._can_overwrite():
            self._staged, self._is_here, self._is_overwritten = self.whole, False, True
        elif self._staged is None:
            self._staged = self._new_staged()
        places = [self._staged_of(number) for number in self._held]
        self._framework.copy(places, [*self._held.values()])
        self._let_go_of_held()

    def _can_overwrite(self) -> bool:
        """Return whether gradients may be reduced from the memory of `whole`. Not from registered
        memory: other ranks, whose graphs hold theirs, would reduce from memory that is not."""
        return self._slots is None and self._is_here and not self.is_held()

    def _allocate(self) -> None:
        if self._slots is None:
            super()._allocate()
        else:
            self._slots.allocate(self.whole)

    def _begin_gather(self) -> Any:
        if self._slots is None:
            return super()._begin_gather()
        own = self._parts[self._flat.part]  # in registered memory, as is what is received
        own[...] = self.shard
        return self._gather(own)

    def _let_go_of_held(self) -> None:
        for number in self._held:
            self._give(self._flat.sizes[number], self._precision.reduced)
        self._held.clear()

    def _free_overwritten(self) -> None:
        if self._is_overwritten:
            self._is_overwritten = False
            self._release()

    def _new_staged(self) -> Any:
        staged = super()._new_staged()
        for gap in self._flat.gaps():
            staged[gap] = 0
        return staged

    def _reduce(self, target: Any, staged: Any) -> Any:
        if self._flat.is_even:
            return self._group.reduce_scatter_tensor(target, staged, ReduceOp.AVG, async_op=True)
        return super()._reduce(target, staged)
