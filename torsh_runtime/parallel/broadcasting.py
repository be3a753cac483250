"""Broadcasts many tensors, each from a rank that has its values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Tensor, framework_of
from torsh_runtime.framework.models import kind_of

_SMALL = 1 << 20
"""Bytes up to which copying a tensor on a GPU costs less than an operation for it alone."""
_TOGETHER = 64 << 20
"""Bytes of tensors on GPUs, copies of small ones among them, that are launched together. Further
ones come behind them on the same streams, where memory of the copies is used again."""


def broadcast_all(wanted: Iterable[tuple[ProcessGroup, int, Tensor]]) -> None:
    """Give all ranks of each group the values that its root has of a tensor.

    What is in the host's memory is sent from where it is. On GPUs small tensors are copied into one
    array for each group, root, dtype and device, and those of a group are launched together, about
    64 MiB at a time.
    """
    works: list[Work] = []
    there: dict[ProcessGroup, list[tuple[int, Tensor]]] = {}
    for group, root, tensor in wanted:
        values = tensor.data
        if isinstance(values, np.ndarray) or getattr(values, "is_cpu", False):
            works.append(group.broadcast(values, root, async_op=True))
        else:
            there.setdefault(group, []).append((root, tensor))
    for group, tensors in there.items():
        for some in _portions(tensors):
            _broadcast_on_gpus(group, some)
    for work in works:
        work.wait()


def _portions(tensors: list[tuple[int, Tensor]]) -> Iterator[list[tuple[int, Tensor]]]:
    """Cut one group's tensors into portions, which are the same on all of its ranks."""
    some: list[tuple[int, Tensor]] = []
    size = 0
    for root, tensor in tensors:
        if some and size + tensor.data.nbytes > _TOGETHER:
            yield some
            some, size = [], 0
        some.append((root, tensor))
        size += tensor.data.nbytes
    if some:
        yield some


def _broadcast_on_gpus(group: ProcessGroup, tensors: list[tuple[int, Tensor]]) -> None:
    parcels: dict[Any, _Parcel] = {}
    for root, tensor in tensors:
        key = root, kind_of(tensor.data)
        if key not in parcels:
            parcels[key] = _Parcel(root, tensor)
        parcels[key].add(tensor.data)
    sent = [(values, each.root) for each in parcels.values() for values in each.pack()]
    with group.launching_together(len(sent)):
        works = [group.broadcast(values, root, async_op=True) for values, root in sent]
    for work in works:
        work.wait()
    for parcel in parcels.values():
        if parcel.root != group.rank:
            parcel.unpack()


class _Parcel:
    """Holds what a root sends of one dtype from one GPU."""

    def __init__(self, root: int, tensor: Tensor) -> None:
        self.root = root
        self._foreach = framework_of(tensor).foreach
        self._large: list[Any] = []
        self._small: list[Any] = []
        self._flat: Any = None

    def add(self, values: Any) -> None:
        """Let these be sent as well."""
        (self._small if values.nbytes <= _SMALL else self._large).append(values)

    def pack(self) -> list[Any]:
        """Return what is to be sent: what is large, and one array with all that is small."""
        if len(self._small) < 2:
            return [*self._large, *self._small]
        self._flat = self._foreach.cat(self._small)
        return [*self._large, self._flat]

    def unpack(self) -> None:
        """Copy what has come to where it belongs."""
        if self._flat is not None:
            self._foreach.copy_(self._small, self._flat)
