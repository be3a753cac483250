"""How often constructors ask the other ranks, and what ranks are told that ask different things;
each function one rank's part.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn
from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.intercepting import Intercepting
from torsh_runtime.backends.operation import Op
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group

WIDTH = 4
PLAN = {"0": tr.Column(gather_output=False), "1": tr.Row()}


class _Counting(Intercepting):
    """Counts the operations of one group, those with which ranks tell each other numbers too."""

    def __init__(self, backend: Any, counts: Counter[str]) -> None:
        super().__init__(backend)
        self._counts = counts

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        self._counts[op.kind] += 1
        return op.begin(self._backend, timeout, async_op)

    def all_gather_numbers(self, own: Any, timeout: float) -> Any:
        """Everyone's numbers."""
        self._counts["numbers"] += 1
        return self._backend.all_gather_numbers(own, timeout)


def counted(call: Callable[[], Any], groups: Iterable[tr.ProcessGroup]) -> dict[str, int]:
    """What a call does in these groups, by operation."""
    counts: Counter[str] = Counter()
    groups = [*groups]
    for group in groups:
        group.observe(lambda backend: cast(Backend, _Counting(backend, counts)))
    call()
    for group in groups:
        group.observe(None)
    return dict(counts)


def model() -> Any:
    """The same on all ranks."""
    nn.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, dtype=np.float64) for _ in range(4)))


def constructors(rank: int) -> dict[str, dict[str, int]]:
    """What constructors do in the groups of four ranks, by name."""
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2})
    whole = default_group()
    both = mesh.get_group("pp"), mesh.get_group("dp")

    def experts(data: Any) -> Any:
        return tr.MixtureOfExperts(
            WIDTH, 8, 4, mesh=mesh["dp"], data=data, framework="nn", dtype=np.float64
        )

    def pipeline(**options: Any) -> Any:
        return tr.PipelineParallel(
            model(), 2, mesh=mesh, cuts=["2"], loss_fn=nn.functional.mse_loss, **options
        )

    def replicated(stage: Any) -> Any:
        return tr.DistributedDataParallel(stage, process_group=mesh["dp"])

    def hybrid() -> Any:
        mesh_of_two = mesh["pp", "dp"]
        return tr.FullyShardedDataParallel(
            model(), process_group=mesh_of_two, sharding_strategy="hybrid", min_num_params=0
        )

    def spread_experts() -> Any:
        return tr.DistributedDataParallel(
            nn.Sequential(model(), experts(mesh)), process_group=mesh["pp", "dp"]
        )

    calls: dict[str, tuple[Callable[[], Any], Any]] = {
        "DeviceMesh": (lambda: tr.init_device_mesh({"pp": 2, "dp": 2}), [whole]),
        "DistributedDataParallel": (lambda: tr.DistributedDataParallel(model()), [whole]),
        "FullyShardedDataParallel": (
            lambda: tr.FullyShardedDataParallel(model(), min_num_params=0),
            [whole],
        ),
        "hybrid FullyShardedDataParallel": (hybrid, both),
        "MixtureOfExperts": (lambda: experts(None), [whole, *both]),
        "MixtureOfExperts with tokens of others": (lambda: experts(mesh), [whole, *both]),
        "parallelize": (lambda: tr.parallelize(model(), mesh["dp"], PLAN), both),
        "ColumnParallelLinear": (
            lambda: tr.ColumnParallelLinear(WIDTH, 8, mesh=mesh["dp"], framework="nn"),
            both,
        ),
        "PipelineParallel": (lambda: pipeline(), [whole, *both]),
        "PipelineParallel that wraps": (lambda: pipeline(wrap=replicated), [whole, *both]),
        "PipelineParallel with an example": (
            lambda: pipeline(example=nn.Tensor(np.ones((2, WIDTH)))),
            [whole, *both],
        ),
        "DistributedDataParallel of experts": (spread_experts, [whole, *both]),
    }
    return {name: counted(call, groups) for name, (call, groups) in calls.items()}


def differing(rank: int) -> dict[str, tuple[str, float]]:
    """What ranks of two are told, and after how many seconds, whose rank 1 does something else than
    rank 0, one thing after the other."""

    def either(first: Callable[[], Any], second: Callable[[], Any]) -> Callable[[], Any]:
        return second if rank else first

    def sharded(**options: Any) -> Any:
        return tr.FullyShardedDataParallel(model(), min_num_params=0, **options)

    def experts(top_k: int) -> Any:
        return tr.MixtureOfExperts(WIDTH, 8, 2, top_k, framework="nn")

    def of_numbers() -> Any:
        return default_group().all_gather_numbers(np.array([7], np.int64))

    attempts: dict[str, Callable[[], Any]] = {
        "two constructors": either(lambda: tr.DistributedDataParallel(model()), sharded),
        "three": either(lambda: experts(2), lambda: tr.parallelize(model(), None, PLAN)),
        "a field of one rank": either(
            lambda: tr.DistributedDataParallel(model()),
            lambda: tr.DistributedDataParallel(model(), no_such=1),
        ),
        "a model of one rank": either(
            lambda: tr.DistributedDataParallel(model()),
            lambda: tr.DistributedDataParallel(nn.Sequential()),
        ),
        "an option of one rank": either(lambda: experts(2), lambda: experts(3)),
        "the same on both": lambda: experts(3),
        "a part that is no part": either(
            lambda: tr.parallelize(model(), None, PLAN),
            lambda: tr.parallelize(model(), None, {"none": tr.Column()}),
        ),
        "no agreement": either(lambda: tr.DistributedDataParallel(model()), of_numbers),
    }
    return {name: _told(attempt) for name, attempt in attempts.items()}


def _told(attempt: Callable[[], Any]) -> tuple[str, float]:
    begun = time.monotonic()
    try:
        attempt()
    except tr.TorshError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begun
    return "", time.monotonic() - begun
