"""Stores what a rank has of a model on a GPU in the memory of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torsh_runtime.framework.protocol import Call
from torsh_runtime.parallel.fsdp.device_storage import DeviceStorage
from torsh_runtime.parallel.fsdp.fsdp_param import Stored


class OffloadedStorage(DeviceStorage):
    """Keeps this rank's part and its gradients in pinned memory of the CPU.

    The part comes to its place in `whole` on a stream of its own before it is gathered. Reduced
    gradients go to the CPU on that stream, too, which settle() waits for.
    """

    drops_gradients = False
    averages_late = True

    def __init__(self, stored: Stored) -> None:
        flat = stored.flat
        self._device: Any = stored.framework.empty(0, flat.precision.own, flat.parameters[0])
        super().__init__(stored)
        self._like = self._device
        self._was_read: Call | None = None
        self._arriving: list[tuple[Call, Any, bool, Any]] = []

    def prepare(self) -> None:
        super().prepare()
        for arrived, *_ in self._arriving:
            arrived()
        self._arriving.clear()

    def made_gradients(self) -> Any:
        if self.gradients is None:
            size, dtype = self._flat.own_size, self._precision.gradients
            self.gradients = self._framework.pinned(size, dtype)
            self._count(size, dtype)
        return self.gradients

    def finish(
        self, missing: Sequence[int], adds: bool, fresh: Sequence[int], is_over: bool
    ) -> None:
        self.settle()  # in case that gradients have come before
        super().finish(missing, adds, fresh, is_over)

    def wait(self) -> None:
        framework, size = self._framework, self._flat.own_size
        for work, target, adds, _ in self._reducing:
            work.wait()
            values = framework.cast(target, self._precision.gradients)
            host = self.made_gradients()
            if adds:
                host = framework.pinned(size, self._precision.gradients)
            with framework.aside(self._device):
                framework.copy_without_waiting(host, values)
                self._arriving.append((framework.moment(self._device), host, adds, values))
            self._give(self._flat.size, self._precision.reduced)
        self._reducing.clear()
        self._free_overwritten()

    def settle(self) -> None:
        for arrived, host, adds, _ in self._arriving:
            arrived()
            if adds:
                self.gradients += host
        self._arriving.clear()

    def met(self) -> None:
        if self._was_read is not None:  # the program may change this rank's part now
            self._was_read()
            self._was_read = None

    def full(self) -> Any:
        return self._whole_of(self.shard, self._precision.own)

    def full_gradients(self) -> Any:
        if self.gradients is None:
            return None
        return self._whole_of(self.gradients, self._precision.gradients)

    def _whole_of(self, own: Any, dtype: str) -> Any:
        everything = self._new(self._flat.size, dtype)
        place = self._flat.parts(everything)[self._flat.part]
        place[...] = own
        self._gather_into(everything, place)
        return everything

    def _make_shard(self) -> Any:
        return self._framework.pinned(self._flat.own_size, self._precision.own)

    def _begin_gather(self) -> Any:
        framework, own = self._framework, self._parts[self._flat.part]
        with framework.aside(self._device):
            if self._precision.own == self._precision.computed:
                framework.copy_without_waiting(own, self.shard)
            else:
                there = self._new(self._flat.own_size, self._precision.own)
                framework.copy_without_waiting(there, self.shard)
                own[...] = there
            self._was_read = framework.moment(self._device)
            return self._gather(own)

    def _target(self, adds: bool) -> Any:
        return self._new(self._flat.own_size, self._precision.reduced)
