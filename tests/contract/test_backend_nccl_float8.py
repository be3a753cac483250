"""Floats of 8 bits on GPUs: all that only moves takes them, and NCCL reduces some, on fakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import fake_cuda, fake_cupy, fake_nccl
from support.fake_gpus import Ranks
from support.suite.cases import LONG

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.nccl import reductions
from torsh_runtime.backends.nccl.backend import NcclBackend

ml_dtypes = pytest.importorskip("ml_dtypes")
REDUCED = ("float8_e4m3fn", "float8_e5m2")


@pytest.fixture(autouse=True)
def _versions() -> Iterator[None]:
    """Each test asks anew what NCCL and the GPUs can do."""
    reductions._reduces_float8.cache_clear()
    yield
    reductions._reduces_float8.cache_clear()


def array(dtype: str, *values: float) -> Any:
    return fake_cupy.asarray(np.array(values, getattr(ml_dtypes, dtype)))


@pytest.mark.parametrize("dtype", [*REDUCED, "float8_e8m0fnu", "float8_e4m3b11fnuz"])
def test_what_only_moves_takes_them(fake_ranks: Ranks, dtype: str) -> None:
    def body(backend: NcclBackend) -> None:
        rank, peer = backend.rank, 1 - backend.rank
        own, both = array(dtype, 2.0**rank, 4.0), array(dtype, *[1.0] * 4)
        backend.all_gather(both, own, LONG)
        assert both.get().astype(float).tolist() == [1, 4, 2, 4]
        parts = [array(dtype, 1.0), array(dtype, 1.0, 1.0, 1.0)]
        given = array(dtype, *[8.0] * (1 + 2 * rank))
        backend.all_gather(parts, given, LONG)
        assert [part.get().astype(float).tolist() for part in parts] == [[8], [8] * 3]
        wide = array(dtype, 2.0**rank, 1.0, 2.0**rank, 1.0)[::2]
        backend.broadcast(wide, 1, LONG)
        assert wide.get().astype(float).tolist() == [2, 2]
        there = array(dtype, 1.0, 1.0)
        backend.all_to_all(there, own, LONG)
        assert there.get().astype(float).tolist() == [[1, 2], [4, 4]][rank]
        backend.scatter(there, [own, own] if rank == 0 else None, 0, LONG)
        backend.gather([there, there.copy()] if rank == 0 else None, own, 0, LONG)
        with backend.coalescing():
            backend.send(own, peer, 0, LONG, async_op=True)
            work = backend.recv(there, peer, 0, LONG, async_op=True)
        work.wait()
        assert there.get().astype(float).tolist() == [2.0**peer, 4]

    fake_ranks.run(2, body)


@pytest.mark.parametrize("dtype", REDUCED)
def test_nccl_reduces_them_by_its_own_types(fake_ranks: Ranks, dtype: str) -> None:
    def body(backend: NcclBackend) -> None:
        values = array(dtype, backend.rank + 1.0, 1.5)
        backend.all_reduce(values, ReduceOp.SUM, LONG)
        assert values.get().astype(float).tolist() == [3, 3]
        backend.all_reduce(values, ReduceOp.AVG, LONG)
        part = array(dtype, 0.0)
        backend.reduce_scatter(part, values, ReduceOp.MAX, LONG)
        assert (values.get().astype(float).tolist(), float(part.get()[0])) == ([3, 3], 3)

    fake_ranks.run(2, body)


@pytest.mark.parametrize(
    ("dtype", "op", "release", "capability", "words"),
    [
        ("float8_e4m3fn", ReduceOp.SUM, (2, 23, 4), (9, 0), "before version 2.24"),
        ("float8_e5m2", ReduceOp.SUM, (2, 28, 9), (8, 9), r"compute capability below 9\.0"),
        ("float8_e5m2", PremulSum(0.5), (2, 28, 9), (9, 0), "by PREMUL_SUM and .*use SUM"),
        ("float8_e5m2", ReduceOp.BAND, (2, 28, 9), (9, 0), "bitwise operations; use SUM"),
        ("float8_e8m0fnu", ReduceOp.MAX, (2, 28, 9), (9, 0), "has no such numbers"),
    ],
)
def test_other_reductions_are_refused_by_name(
    fake_ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    op: Reduce,
    release: tuple[int, ...],
    capability: tuple[int, int],
    words: str,
) -> None:
    monkeypatch.setattr(fake_nccl, "release", release)

    def body(backend: NcclBackend) -> None:
        fake_cuda.machine().capability = capability
        values = array(dtype, 1.0, 1.0)
        with pytest.raises(TypeError, match=words):
            backend.all_reduce(values, op, LONG)
        backend.broadcast(values, 0, LONG)  # the group lives

    fake_ranks.run(2, body)
