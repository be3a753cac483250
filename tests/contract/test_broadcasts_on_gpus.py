"""Many arrays on GPUs are broadcast in few operations, which are launched together."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from support import fake_cupy
from support.fake_gpus import Ranks
from support.suite.cases import LONG

from torsh_runtime import nn
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.parallel import broadcasting
from torsh_runtime.parallel.broadcasting import broadcast_all

SIZES = (3, 1 << 19, 5)
"""Elements of float32, of which the second has more than a MiB."""


class Group:
    """What a group makes of a backend's broadcasts."""

    def __init__(self, backend: NcclBackend) -> None:
        self._backend, self.rank = backend, backend.rank
        self.sizes: list[int] = []

    def broadcast(self, array: Any, root: int, async_op: bool) -> Any:
        self.sizes.append(array.size)
        return self._backend.broadcast(array, root, LONG, async_op)

    def launching_together(self, count: int) -> AbstractContextManager[object]:
        return self._backend.coalescing()


def test_small_arrays_of_one_root_go_as_one(fake_ranks: Ranks) -> None:
    def body(backend: NcclBackend) -> tuple[list[int], list[float]]:
        group: Any = Group(backend)
        made = [np.full(size, backend.rank + 1, np.float32) for size in SIZES]
        tensors = [nn.Tensor(fake_cupy.asarray(each)) for each in made]
        broadcast_all((group, 1, each) for each in tensors)
        return group.sizes, [float(each.data.get().min()) for each in tensors]

    for sizes, values in fake_ranks.run(2, body):
        assert sizes == [1 << 19, 8]
        assert values == [2.0, 2.0, 2.0]


def test_what_is_copied_to_be_sent_together_is_bounded(
    fake_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasting, "_TOGETHER", 400)

    def body(backend: NcclBackend) -> tuple[list[int], list[float]]:
        group: Any = Group(backend)
        made = [np.full(30, backend.rank + number, np.float32) for number in range(8)]
        tensors = [nn.Tensor(fake_cupy.asarray(each)) for each in made]
        broadcast_all((group, 1, each) for each in tensors)
        return group.sizes, [float(each.data.get().min()) for each in tensors]

    for sizes, values in fake_ranks.run(2, body):
        assert sizes == [90, 90, 60]
        assert values == [1.0 + number for number in range(8)]
