"""Hooks that compute with cupy do so in turn with torch's work on the same GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import fake_cupy
from support.fake_gpus import fake_gpus
from support.ports import free_address

import torsh_runtime as tr

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def test_cupy_follows_the_stream_that_is_torchs_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torsh_runtime.framework.torch import FRAMEWORK

    with fake_gpus(2) as machine, fake_cupy.cuda.Device(1):
        busy = fake_cupy.cuda.Stream(non_blocking=True)
        current = SimpleNamespace(cuda_stream=busy.ptr)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
        flat: Any = SimpleNamespace(device=torch.device("cuda:1"))
        with busy:
            gradient = fake_cupy.asarray(np.full(4, 8.0))
            gradient /= 2  # torch's work, which the GPU has not done yet
        with FRAMEWORK.following(flat):
            assert fake_cupy.cuda.get_current_stream().ptr == busy.ptr
            gradient /= 2
            assert (gradient.get() == 2).all()
        assert fake_cupy.cuda.get_current_stream().ptr != busy.ptr
        assert machine.current.number == 1


def test_no_stream_is_asked_for_on_cpus() -> None:
    from torsh_runtime.framework.torch import FRAMEWORK

    assert isinstance(FRAMEWORK.following(torch.zeros(1)), nullcontext)


def test_hooks_are_called_in_such_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from torsh_runtime.framework.torch import FRAMEWORK

    entered: list[Any] = []
    seen: list[int] = []

    @contextmanager
    def following(self: object, flat: Any) -> Iterator[None]:
        entered.append(flat)
        yield
        entered.pop()

    def hook(state: object, bucket: Any) -> Any:
        seen.append(sum(each is bucket.flat for each in entered))
        return tr.all_reduce(bucket.flat, async_op=True)

    monkeypatch.setattr(type(FRAMEWORK), "following", following)
    tr.init_process_group(init_method=free_address(), world_size=1, rank=0)
    try:
        model = tr.DistributedDataParallel(torch.nn.Linear(2, 2))
        model.register_comm_hook(None, hook)
        model(torch.ones(1, 2)).sum().backward()
    finally:
        tr.destroy_process_group()
    assert seen == [1]
