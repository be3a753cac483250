"""Operations that move data, of every dtype, with equal and with uneven parts."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from support.suite.cases import DTYPES, LONG, Array, Suite, check_equal, empty, uneven, values

from torsh_runtime.backends.base import Backend, ReduceOp

SUITE = Suite()
SIZES = (0, 1, 7, 513, 70_001)


@SUITE.each(DTYPES)
def broadcast(backend: Backend, dtype: str) -> None:
    for root in range(backend.world_size):
        for size in SIZES:
            array = values(backend.rank, size, dtype, root).copy()
            backend.broadcast(array, root, LONG)
            check_equal(array, values(root, size, dtype, root))


@SUITE.each(DTYPES)
def all_gather(backend: Backend, dtype: str) -> None:
    for size in SIZES:
        output = empty(size * backend.world_size, dtype)
        backend.all_gather(output, values(backend.rank, size, dtype), LONG)
        parts = [values(r, size, dtype) for r in range(backend.world_size)]
        check_equal(output, np.concatenate(parts))


@SUITE.each(DTYPES)
def all_gather_list(backend: Backend, dtype: str) -> None:
    outputs = [empty(uneven(r), dtype) for r in range(backend.world_size)]
    backend.all_gather(outputs, values(backend.rank, uneven(backend.rank), dtype), LONG)
    for r, output in enumerate(outputs):
        check_equal(output, values(r, uneven(r), dtype))


@SUITE.each(DTYPES)
def gather(backend: Backend, dtype: str) -> None:
    for root in range(backend.world_size):
        for size in (0, 1, 7, 5003):
            own = values(backend.rank, size, dtype, root)
            if backend.rank != root:
                backend.gather(None, own, root, LONG)
                continue
            outputs = [empty(size, dtype) for _ in range(backend.world_size)]
            backend.gather(outputs, own, root, LONG)
            for r, output in enumerate(outputs):
                check_equal(output, values(r, size, dtype, root))


@SUITE.each(DTYPES)
def scatter(backend: Backend, dtype: str) -> None:
    for root in range(backend.world_size):
        for size in (0, 1, 7, 5003):
            output, inputs = empty(size, dtype), None
            if backend.rank == root:
                inputs = [values(r, size, dtype, root) for r in range(backend.world_size)]
            backend.scatter(output, inputs, root, LONG)
            check_equal(output, values(backend.rank, size, dtype, root))


@SUITE.each(DTYPES)
def all_to_all(backend: Backend, dtype: str) -> None:
    ranks = backend.world_size
    for size in (0, 1, 7, 4099):
        array = np.concatenate([values(backend.rank, size, dtype, r) for r in range(ranks)])
        output = empty(size * ranks, dtype)
        backend.all_to_all(output, array, LONG)
        check_equal(
            output, np.concatenate([values(r, size, dtype, backend.rank) for r in range(ranks)])
        )


@SUITE.each(DTYPES)
def all_to_all_list(backend: Backend, dtype: str) -> None:
    ranks, own = range(backend.world_size), backend.rank
    inputs = [values(own, uneven(own + 2 * r), dtype, r) for r in ranks]
    outputs = [empty(uneven(r + 2 * own), dtype) for r in ranks]
    backend.all_to_all(outputs, inputs, LONG)
    for r, output in enumerate(outputs):
        check_equal(output, values(r, uneven(r + 2 * own), dtype, own))


@SUITE.case()
def equal_parts_are_an_array_or_a_list(backend: Backend) -> None:
    ranks, rank = backend.world_size, backend.rank
    mine = np.arange(5) + 10 * rank
    given = np.arange(5 * ranks).reshape(ranks, 5) + 100 * rank
    results = []
    for form in (np.asarray, list, tuple):
        gathered, part, got = np.empty((ranks, 5), int), np.empty(5, int), np.empty((ranks, 5), int)
        backend.all_gather(form(gathered), mine, LONG)
        backend.reduce_scatter(part, form(given), ReduceOp.SUM, LONG)
        backend.all_to_all(form(got), form(given), LONG)
        results.append((gathered, part, got))
    offsets = np.arange(ranks)[:, None]
    for gathered, part, got in results:
        assert (gathered == np.arange(5) + 10 * offsets).all()
        assert (part == sum(np.arange(5) + 5 * rank + 100 * r for r in range(ranks))).all()
        assert (got == np.arange(5) + 5 * rank + 100 * offsets).all()


@SUITE.case()
def an_array_and_a_list_are_not_exchanged(backend: Backend) -> None:
    rows = np.zeros((backend.world_size, 3))
    for outputs, inputs in ((rows, [*rows]), ([*rows], rows)):
        with pytest.raises(ValueError, match="a list each"):
            backend.all_to_all(outputs, inputs, LONG)
    with pytest.raises(ValueError, match="outputs"):
        backend.all_to_all([*rows], [np.zeros(4) for _ in rows], LONG)
    backend.barrier(LONG)  # the group lives


@SUITE.case()
def large_arrays(backend: Backend) -> None:
    ranks, size = backend.world_size, 700_001
    array = np.concatenate([values(backend.rank, size, "int32", r) for r in range(ranks)])
    output = empty(size * ranks, "int32")
    backend.all_to_all(output, array, LONG)
    wanted = [values(r, size, "int32", backend.rank) for r in range(ranks)]
    check_equal(output, np.concatenate(wanted))
    backend.all_gather(output, values(backend.rank, size, "int32"), LONG)
    check_equal(output, np.concatenate([values(r, size, "int32") for r in range(ranks)]))


@SUITE.case()
def barrier(backend: Backend) -> None:
    for _ in range(50):
        backend.barrier(LONG)


@SUITE.case()
def all_gather_takes_its_input_from_its_output(backend: Backend) -> None:
    output = np.zeros((backend.world_size, 1000), np.int32)
    output[backend.rank] = backend.rank + 1
    backend.all_gather(output, output[backend.rank], LONG)
    assert (output == np.arange(1, backend.world_size + 1)[:, None]).all()


@SUITE.case()
def operations_mix_without_meeting(backend: Backend) -> None:
    ranks, rank = backend.world_size, backend.rank
    for step in range(40):
        size = 1 + step * 137 % 5000
        array = np.full(size, rank + step, np.int64)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        assert (array == ranks * step + ranks * (ranks - 1) // 2).all()
        backend.barrier(LONG)
        array[:] = rank
        backend.broadcast(array, step % ranks, LONG)
        assert (array == step % ranks).all()
        part = np.empty(size, np.int64)
        backend.reduce_scatter(part, np.repeat(np.arange(ranks), size), ReduceOp.MAX, LONG)
        assert (part == rank).all()


@SUITE.case()
def strided_arrays(backend: Backend) -> None:
    ranks = backend.world_size
    grid = np.ones((50, 40), np.float32)
    backend.all_reduce(grid[::2, 1::3], ReduceOp.SUM, LONG)
    assert (grid[::2, 1::3] == ranks).all()
    assert grid.sum() == 50 * 40 + 25 * 13 * (ranks - 1)
    backwards = np.arange(5000, dtype=np.int32)[::-1]
    gathered = np.empty((5000, ranks), np.int32).T
    backend.all_gather(gathered, backwards, LONG)
    assert (gathered == backwards).all()
    columns = np.zeros((3, ranks), np.int64)
    outputs = [columns[:, r] for r in range(ranks)]
    backend.all_gather(outputs, np.full(6, backend.rank)[::2], LONG)
    assert (columns == np.arange(ranks)).all()


@SUITE.case()
def an_array_without_dimensions(backend: Backend) -> None:
    scalar = np.array(2.0)
    backend.all_reduce(scalar, ReduceOp.SUM, LONG)
    assert scalar == 2 * backend.world_size


@SUITE.case()
def misaligned_arrays(backend: Backend) -> None:
    raw = np.zeros(8 * 1000 + 1, np.uint8)
    array = raw[1:].view(np.float64)
    array[:] = np.arange(1000)
    backend.all_reduce(array, ReduceOp.SUM, LONG)
    np.testing.assert_array_equal(array, np.arange(1000) * backend.world_size)


@SUITE.case()
def other_buffers(backend: Backend) -> None:
    data = bytearray(b"\x01\x02\x03")
    backend.all_reduce(data, ReduceOp.BOR, LONG)
    assert data == b"\x01\x02\x03"


@SUITE.case()
def a_root_sends_read_only_data(backend: Backend) -> None:
    array = np.full(100, backend.rank)
    array.flags.writeable = backend.rank != 0
    backend.broadcast(array, 0, LONG)
    assert (array == 0).all()


@SUITE.case()
def what_cannot_be_sent_is_refused_before_it_starts(backend: Backend) -> None:
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    for wrong, error in (
        ([1.0, 2.0], TypeError),
        (np.zeros(3, ">f4"), TypeError),
        (np.zeros(3, "datetime64[s]"), TypeError),
        (np.zeros(3, object), TypeError),
        (read_only, ValueError),
        (None, TypeError),
    ):
        with pytest.raises(error):
            backend.all_reduce(wrong, ReduceOp.SUM, LONG)
    backend.barrier(LONG)  # the group lives


@SUITE.case()
def sizes_and_dtypes_must_fit(backend: Backend) -> None:
    ranks = backend.world_size
    with pytest.raises(ValueError, match=r"world_size|size"):
        backend.all_gather(np.empty(7 * ranks + 1), np.empty(7), LONG)
    with pytest.raises(ValueError, match="dtype"):
        backend.all_gather(np.empty(ranks), np.empty(1, np.float32), LONG)
    with pytest.raises(ValueError, match=r"world_size|size"):
        backend.reduce_scatter(np.empty(7), np.empty(7 * ranks + 1), ReduceOp.SUM, LONG)
    with pytest.raises(ValueError, match="outputs"):
        backend.all_gather([np.empty(1)] * (ranks + 1), np.empty(1), LONG)
    with pytest.raises(ValueError, match=r"size|elements"):
        backend.all_to_all(np.empty(3 * ranks), np.empty(4 * ranks), LONG)
    for root in (-1, ranks):
        with pytest.raises(ValueError, match="root"):
            backend.broadcast(np.empty(1), root, LONG)
    backend.barrier(LONG)


@SUITE.case()
def torch_tensors(backend: Backend) -> None:
    if not find_spec("torch"):
        return
    import torch

    ranks = backend.world_size
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64, torch.bfloat16):
        if dtype is torch.bfloat16 and "bfloat16" not in DTYPES:
            continue
        grid = torch.zeros(20, 30, dtype=dtype)
        grid[:, ::2] = 1
        backend.all_reduce(grid[:, ::2], ReduceOp.SUM, LONG)
        total = True if dtype is torch.bool else ranks
        assert (grid[:, ::2] == total).all()
        assert not grid[:, 1::2].any()
        parts = [torch.zeros(7, dtype=dtype) for _ in range(ranks)]
        backend.all_gather(parts, torch.ones(7, dtype=dtype), LONG)
        assert all((part == 1).all() for part in parts)
    parameter = torch.nn.Parameter(torch.full((4,), float(backend.rank)))
    backend.broadcast(parameter, ranks - 1, LONG)
    assert (parameter == ranks - 1).all()


OPAQUE: dict[str, Any] = {
    "structured": [("index", "i4"), ("weights", "f8", (3,))],
    "datetime64": "datetime64[s]",
    "timedelta64": "timedelta64[ns]",
    "longdouble": np.longdouble,
    "clongdouble": np.clongdouble,
    "foreign": ">f4",
    "text": "U3",
    "bytes": "S5",
}


def opaque_dtypes() -> dict[str, np.dtype[Any]]:
    """Those that can only be moved, by name."""
    found = {name: np.dtype(kind) for name, kind in OPAQUE.items()}
    if find_spec("ml_dtypes"):
        import ml_dtypes

        found["float8"] = np.dtype(ml_dtypes.float8_e4m3fn)
    return found


def raw(rank: int, size: int, dtype: np.dtype[Any], seed: int = 0) -> Array:
    """Elements whose bytes are letters, which are good in every dtype."""
    letters = np.random.default_rng((seed, rank, size)).integers(65, 91, size * dtype.itemsize)
    if dtype.kind == "U":
        return letters[: 3 * size].astype(np.uint32).view(dtype)
    return letters.astype(np.uint8).view(dtype)


def joined(arrays: list[Array]) -> Array:
    """np.concatenate turns bytes into this machine's order."""
    return np.frombuffer(b"".join(array.tobytes() for array in arrays), arrays[0].dtype)


@SUITE.each([*OPAQUE, "float8"])
def any_dtype_is_moved(backend: Backend, name: str) -> None:
    dtype = opaque_dtypes().get(name)
    if dtype is None:
        return
    n, rank = backend.world_size, backend.rank
    for size in (1, 1003):
        parts = [raw(r, size, dtype) for r in range(n)]
        own = parts[rank].copy()
        backend.broadcast(own, n - 1, LONG)
        check_equal(own, parts[-1])
        table = np.zeros((n, size), dtype)
        backend.all_gather(table, parts[rank], LONG)
        check_equal(table, joined(parts))
        room = [np.zeros(size, dtype) for _ in range(n)] if rank == 0 else None
        backend.gather(room, parts[rank], 0, LONG)
        if room is not None:
            check_equal(joined(room), table)
        backend.scatter(own, parts if rank == 0 else None, 0, LONG)
        check_equal(own, parts[rank])
        backend.all_to_all(table, joined([raw(rank, size, dtype, r) for r in range(n)]), LONG)
        check_equal(table, joined([raw(r, size, dtype, rank) for r in range(n)]))
    uneven_parts = [np.zeros(uneven(r), dtype) for r in range(n)]
    backend.all_gather(uneven_parts, raw(rank, uneven(rank), dtype), LONG)
    for r, part in enumerate(uneven_parts):
        check_equal(part, raw(r, uneven(r), dtype))
    strided = np.zeros((4, 6), dtype)
    backend.broadcast(strided[:, ::2] if rank else raw(0, 12, dtype).reshape(4, 3), 0, LONG)
    assert rank == 0 or strided[:, ::2].tobytes() == raw(0, 12, dtype).tobytes()
    if n > 1:
        sent = backend.send(raw(rank, 9, dtype), (rank + 1) % n, 3, LONG, True)
        got = np.zeros(9, dtype)
        backend.recv(got, (rank - 1) % n, 3, LONG)
        sent.wait()
        check_equal(got, raw((rank - 1) % n, 9, dtype))


@SUITE.each([*OPAQUE, "float8"])
def what_is_only_moved_is_not_reduced(backend: Backend, name: str) -> None:
    dtype = opaque_dtypes().get(name)
    if dtype is None:
        return
    array, n = np.zeros(4, dtype), backend.world_size
    words = re.escape(str(dtype))
    with pytest.raises(TypeError, match=words):
        backend.all_reduce(array, ReduceOp.SUM, LONG)
    with pytest.raises(TypeError, match=words):
        backend.reduce(array, 0, ReduceOp.MAX, LONG)
    with pytest.raises(TypeError, match=words):
        backend.reduce_scatter(array, np.zeros(4 * n, dtype), ReduceOp.SUM, LONG)
    with pytest.raises(ValueError, match="dtype"):
        backend.all_gather(np.zeros((n, 4), f"V{dtype.itemsize}"), array, LONG)
    backend.barrier(LONG)  # the group lives


@SUITE.case()
def torch_tensors_that_are_only_moved(backend: Backend) -> None:
    if not find_spec("torch"):
        return
    import torch

    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32):
        whole = torch.zeros(2, 6, dtype=dtype)
        mine = torch.full((2, 3), float(backend.rank + 1)).to(dtype)
        backend.broadcast(mine if backend.rank == 0 else whole[:, ::2], 0, LONG)
        if backend.rank:
            assert (whole[:, ::2].to(torch.complex64) == 1).all()
        parts = [torch.zeros(2, 3, dtype=dtype) for _ in range(backend.world_size)]
        backend.all_gather(parts, mine, LONG)
        for rank, part in enumerate(parts):
            assert (part.to(torch.complex64) == rank + 1).all()
        with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
            backend.all_reduce(mine, ReduceOp.SUM, LONG)
