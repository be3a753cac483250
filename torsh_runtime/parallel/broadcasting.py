"""Broadcasts many tensors, each from a rank that has its values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Tensor, framework_of
from torsh_runtime.framework.models import kind_of

_SMALL = 1 << 20
"""Bytes up to which copying a tensor on a GPU costs less than an operation for it alone."""


def broadcast_all(wanted: Iterable[tuple[ProcessGroup, int, Tensor]]) -> None:
    """Give all ranks of each group the values that its root has of a tensor.

    What is in the host's memory is sent from where it is. On GPUs small tensors are copied into one
    array for each group, root, dtype and device, and all of a group are launched together.
    """
    works: list[Work] = []
    parcels: dict[Any, _Parcel] = {}
    for group, root, tensor in wanted:
        values = tensor.data
        if isinstance(values, np.ndarray) or getattr(values, "is_cpu", False):
            works.append(group.broadcast(values, root, async_op=True))
            continue
        key = group, root, kind_of(values)
        if key not in parcels:
            parcels[key] = _Parcel(group, root, tensor)
        parcels[key].add(values)
    for group in dict.fromkeys(each.group for each in parcels.values()):
        works += _begun([each for each in parcels.values() if each.group is group])
    for work in works:
        work.wait()
    for parcel in parcels.values():
        parcel.unpack()


class _Parcel:
    """Holds what a root sends of one dtype from one GPU."""

    def __init__(self, group: ProcessGroup, root: int, tensor: Tensor) -> None:
        self.group, self.root = group, root
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
        if self._flat is not None and self.group.rank != self.root:
            self._foreach.copy_(self._small, self._flat)


def _begun(parcels: list[_Parcel]) -> list[Work]:
    """Begin the broadcasts of one group."""
    group = parcels[0].group
    sent = [(values, each.root) for each in parcels for values in each.pack()]
    with group.launching_together(len(sent)):
        return [group.broadcast(values, root, async_op=True) for values, root in sent]
