"""Gives units memory to become whole in that is registered with their group's backend."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torsh_runtime.backends.base import Registration
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Framework
from torsh_runtime.framework.protocol import MemoryPool


class RegisteredSlots:
    """Allocates from a pool of its own, whose memory is registered once and serves units in
    turns."""

    def __init__(self, pool: MemoryPool, group: ProcessGroup) -> None:
        """Allocate in `pool`, for operations of the group."""
        self._pool = pool
        self._group = weakref.ref(group)
        self._registered: dict[int, tuple[int, Registration]] = {}
        weakref.finalize(self, _give_up, self._registered)

    def allocate(self, values: Any) -> None:
        """Give the values memory, which is registered if the backend can do that by now."""
        self._pool.allocate(values)
        begin, num_bytes = self._pool.address(values), values.nbytes
        for start, (size, registration) in self._registered.items():
            if start <= begin and begin + num_bytes <= start + size and registration.is_valid:
                return
        group = self._group()
        if group is None:
            return
        start, size = self._pool.segment_of(values)
        made = group.register_memory(start, size, self._pool)
        if made is not None:
            self._registered[start] = size, made


def _give_up(registered: Mapping[int, tuple[int, Registration]]) -> None:
    for _, registration in registered.values():
        registration.close()


_slots: weakref.WeakKeyDictionary[ProcessGroup, RegisteredSlots] = weakref.WeakKeyDictionary()


def slots_of(group: ProcessGroup, framework: Framework, like: Any) -> RegisteredSlots | None:
    """Return the slots for units of a group, on the device of `like`; None where no memory can be
    registered."""
    if group not in _slots:
        pool = framework.memory_pool(like)
        if pool is None:
            return None
        _slots[group] = RegisteredSlots(pool, group)
    return _slots[group]
