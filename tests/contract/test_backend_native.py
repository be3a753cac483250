"""What the native backend promises beyond the port: bits, and whose fault it was."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from torsh_runtime.backends.base import Backend, Envelope, ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommAborted, CommError, CommMismatch, CommTimeout, PeerLost

DTYPES = ("float32", "float64", "int32", "int64")
REDUCTIONS = [
    (dtype, op)
    for dtype in DTYPES
    for op in ReduceOp
    if op is not ReduceOp.PREMUL_SUM and (dtype.startswith("int") or not op.name.startswith("B"))
]
# Around the limits of the paths: 48 bytes, 4 KiB, 512 KiB; nothing; odd counts.
SIZES = (0, 1, 5, 6, 7, 12, 13, 511, 512, 513, 1024, 1025, 65_537, 131_072, 131_073, 300_001)
LONG = 60.0
SUM = ReduceOp.SUM
UFUNCS = {
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}

Body = Callable[[Backend], Any]
World = Callable[[Body], list[Any]]


@pytest.fixture(params=[1, 2, 3, 5])
def world(request: pytest.FixtureRequest, thread_world: Any) -> World:
    def run(body: Body) -> list[Any]:
        results = thread_world(request.param, body)
        for result in results:
            if error := getattr(result, "error", None):
                raise error
        return results

    return run


@lru_cache(maxsize=200)
def values(rank: int, size: int, dtype: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng((seed, rank, size))
    if dtype.startswith("int"):
        info = np.iinfo(dtype)
        result = generator.integers(info.min, info.max, size, dtype, endpoint=True)
    else:
        spread = 10.0 ** generator.integers(-5, 5, size)
        result = (generator.standard_normal(size) * spread).astype(dtype)
    result.flags.writeable = False
    return result


def reference(arrays: list[np.ndarray], op: ReduceOp) -> np.ndarray:
    """In order of rank and in the arrays' own precision: the very bits that are promised."""
    combine = UFUNCS.get(op, np.add)
    total = arrays[0].copy()
    with np.errstate(over="ignore"):
        for array in arrays[1:]:
            total = combine(total, array)
    if op is ReduceOp.AVG:
        if total.dtype.kind == "f":
            return total / total.dtype.type(len(arrays))
        floor, rest = np.divmod(total, len(arrays))
        return floor + ((rest != 0) & (total < 0))
    return total


def test_arrays_are_packed_into_a_mebibyte_at_most(world: World) -> None:
    def body(backend: Backend) -> int:
        arrays = [np.ones(1024, np.float32) for _ in range(257)]  # 256 of them are 1 MiB
        begun = backend.all_reduce_coalesced(arrays, SUM, LONG)
        assert all((array == backend.world_size).all() for array in arrays)
        return len(begun)

    assert set(world(body)) == {2}


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_all_reduce_is_exact_on_every_rank(world: World, dtype: str, op: ReduceOp) -> None:
    def body(backend: Backend) -> None:
        for size in SIZES:
            inputs = [values(r, size, dtype) for r in range(backend.world_size)]
            array = inputs[backend.rank].copy()
            backend.all_reduce(array, op, LONG).wait()
            np.testing.assert_array_equal(array, reference(inputs, op), strict=True)

    world(body)


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_from_every_root(world: World, dtype: str) -> None:
    def body(backend: Backend) -> None:
        for root in range(backend.world_size):
            for size in SIZES:
                array = values(backend.rank, size, dtype, root).copy()
                backend.broadcast(array, root, LONG)
                np.testing.assert_array_equal(array, values(root, size, dtype, root))

    world(body)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather(world: World, dtype: str) -> None:
    def body(backend: Backend) -> None:
        for size in SIZES:
            own = values(backend.rank, size, dtype)
            output = np.empty(size * backend.world_size, dtype)
            backend.all_gather(output, own, LONG)
            expected = [values(r, size, dtype) for r in range(backend.world_size)]
            np.testing.assert_array_equal(output, np.concatenate(expected))

    world(body)


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_reduce_scatter(world: World, dtype: str, op: ReduceOp) -> None:
    def body(backend: Backend) -> None:
        for size in SIZES:
            inputs = [
                values(r, size * backend.world_size, dtype) for r in range(backend.world_size)
            ]
            output = np.empty(size, dtype)
            backend.reduce_scatter(output, inputs[backend.rank], op, LONG)
            part = slice(backend.rank * size, (backend.rank + 1) * size)
            np.testing.assert_array_equal(output, reference(inputs, op)[part])

    world(body)


def disagreements() -> list[Any]:
    array = np.zeros
    add, most = ReduceOp.SUM, ReduceOp.MAX
    return [
        pytest.param(
            lambda b, odd: b.all_reduce(array(10 + odd), add, LONG),
            ("float64[11]", "float64[10]"),
            id="size",
        ),
        pytest.param(
            lambda b, odd: b.all_reduce(array((2, 3) if odd else (3, 2)), add, LONG),
            ("float64[2, 3]", "float64[3, 2]"),
            id="shape",
        ),
        pytest.param(
            lambda b, odd: b.all_reduce(array(500_000 + odd), add, LONG),
            ("float64[500001]", "float64[500000]"),
            id="large",
        ),
        pytest.param(
            lambda b, odd: b.all_reduce(array(10, np.int64 if odd else np.float64), add, LONG),
            ("int64[10]", "float64[10]"),
            id="dtype",
        ),
        pytest.param(
            lambda b, odd: b.all_reduce(array(10), most if odd else add, LONG),
            ("MAX", "SUM"),
            id="reduction",
        ),
        pytest.param(
            lambda b, odd: b.broadcast(array(10), 1 if odd else 0, LONG),
            ("src=1", "src=0"),
            id="root",
        ),
        pytest.param(
            lambda b, odd: b.barrier(LONG) if odd else b.all_reduce(array(10), add, LONG),
            ("barrier()", "all_reduce"),
            id="operation",
        ),
    ]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("call", "words"), disagreements())
def test_ranks_that_disagree_are_both_named(
    thread_world: Any, ranks: int, call: Any, words: tuple[str, str]
) -> None:
    def body(backend: Backend) -> None:
        backend.barrier(LONG)
        call(backend, backend.rank == 1)
        backend.barrier(LONG)  # who only gives does not wait, and finds out here

    for result in thread_world(ranks, body):
        error = result.error
        assert isinstance(error, CommMismatch)
        assert error.sequence == 2
        assert 1 in (error.rank, error.other_rank)
        for word in words:
            assert word in str(error)


def test_a_missing_rank_is_named_at_the_deadline(thread_world: Any) -> None:
    def body(backend: Backend) -> str:
        backend.barrier(LONG)
        if backend.rank == 2:
            time.sleep(1.0)
        backend.all_reduce(np.zeros(3), ReduceOp.SUM, 0.3)
        return "went through"

    for result in thread_world(4, body):
        assert isinstance(result.error, CommTimeout)
        assert result.error.missing == (2,)
        assert (result.error.op, result.error.sequence) == ("all_reduce", 2)
        assert result.error.seconds == 0.3


def test_a_dead_group_stays_dead(thread_world: Any) -> None:
    def body(backend: Backend) -> list[str]:
        causes = []
        time.sleep(0.5 * backend.rank)
        for _ in range(3):
            with pytest.raises(CommTimeout) as caught:
                backend.barrier(0.2)
            causes.append(caught.value.op)
        return causes

    assert thread_world(2, body) == [["barrier"] * 3] * 2


def test_threads_of_one_rank_take_turns(thread_world: Any) -> None:
    def body(backend: Backend) -> int:
        def many() -> None:
            for _ in range(50):
                backend.all_reduce(np.ones(2000), ReduceOp.SUM, LONG)

        threads = [threading.Thread(target=many) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        array = np.ones(1)
        backend.all_reduce(array, ReduceOp.SUM, LONG)
        return int(array[0])

    assert thread_world(2, body) == [2, 2]


def test_the_account_of_a_mismatch_outlives_later_calls(thread_world: Any) -> None:
    def body(backend: Backend) -> str:
        if backend.rank == 2:
            time.sleep(0.5)
        call = ReduceOp.MAX if backend.rank == 0 else ReduceOp.SUM
        with pytest.raises(CommMismatch):
            backend.all_reduce(np.zeros(3), call, LONG)
        with pytest.raises(CommMismatch) as caught:
            backend.barrier(LONG)
        return str(caught.value)

    for text in thread_world(3, body):
        assert "MAX" in text
        assert "SUM" in text
        assert "barrier" not in text


def test_a_second_thread_is_told_that_the_group_is_busy(thread_world: Any) -> None:
    def body(backend: Backend) -> str:
        if backend.rank == 1:
            time.sleep(1.0)
            backend.barrier(LONG)
            return ""
        first = threading.Thread(target=backend.barrier, args=(LONG,))
        first.start()
        time.sleep(0.2)
        with pytest.raises(CommAborted) as caught:
            backend.barrier(0.1)
        first.join()
        return str(caught.value)

    assert "another thread" in thread_world(2, body)[0]


def test_closing_ends_the_operation_of_another_thread(thread_world: Any) -> None:
    def body(backend: Backend) -> None:
        if backend.rank == 0:
            threading.Timer(0.2, backend.close).start()
        else:
            time.sleep(1.0)
        backend.barrier(LONG)

    for result in thread_world(2, body):
        assert isinstance(result.error, CommAborted)


def test_a_probe_finds_a_message_and_leaves_it_there(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        if backend.rank == 0:
            backend.barrier(LONG)
            backend.send(np.arange(5), 1, 77, LONG)
            return None
        nothing = backend.probe(0, 77, LONG, wait=False)
        backend.barrier(LONG)
        found = backend.probe(None, None, LONG)
        assert found is not None
        again = backend.probe(0, 77, LONG, wait=False)
        other = backend.probe(0, 78, LONG, wait=False)
        array = np.empty(found.num_bytes // 8, np.int64)
        work = backend.recv(array, found.source, None, LONG)
        left = backend.probe(None, None, LONG, wait=False)
        return nothing, found, again, other, array.tolist(), work.source, left

    _, seen = thread_world(2, body)
    envelope = Envelope(source=0, tag=77, num_bytes=40)
    assert seen == (None, envelope, envelope, None, [0, 1, 2, 3, 4], 0, None)


def test_a_probe_that_waits_does_not_take_the_message_of_a_receive(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        if backend.rank == 0:
            backend.recv(np.zeros(1), 1, 0, LONG)
            for number in range(2):
                backend.send(np.array([number]), 1, 3, LONG)
            return None
        array = np.zeros(1, np.int64)
        posted = backend.recv(array, 0, 3, LONG, async_op=True)
        backend.send(np.zeros(1), 0, 0, LONG)
        found = backend.probe(0, 3, LONG)
        posted.wait()
        second = np.zeros(1, np.int64)
        backend.recv(second, 0, 3, LONG)
        return found, array[0], second[0]

    assert thread_world(2, body)[1] == (Envelope(0, 3, 8), 0, 1)


def test_a_probe_waits_until_its_deadline_and_names_who_sent_nothing(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        if backend.rank == 0:
            with pytest.raises(CommTimeout) as caught:
                backend.probe(1, 0, 0.2)
            return caught.value.missing
        with pytest.raises((CommTimeout, CommAborted)):
            backend.recv(np.zeros(1), 0, 0, LONG)
        return None

    assert thread_world(2, body)[0] == (1,)


def test_a_message_of_any_tag_says_which_it_had(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        if backend.rank == 0:
            for tag in (5, -3):
                backend.send(np.array([tag]), 1, tag, LONG)
            return None
        come = []
        for _ in range(2):
            array = np.zeros(1, np.int64)
            work = backend.recv(array, None, None, LONG, async_op=True)
            work.wait()
            come.append((int(array[0]), work.tag))
        return come

    assert thread_world(2, body)[1] == [(5, 5), (-3, -3)]


def test_threads_that_receive_objects_get_one_each(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        peer = 1 - backend.rank
        got: list[Any] = []

        def talk() -> None:
            for number in range(50):
                backend.send_object(np.full(number * 300, number % 256, np.uint8), peer, 0, LONG)
                got.append(backend.recv_object(None, 0, LONG).content)

        threads = [threading.Thread(target=talk) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all((content == content.size // 300 % 256).all() for content in got)
        return sorted(content.size for content in got)

    expected = sorted(number * 300 for number in range(50) for _ in range(4))
    assert thread_world(2, body) == [expected, expected]


def test_callbacks_of_many_operations_have_one_thread(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        peer, number = 1 - backend.rank, 300
        seen: list[int | None] = []
        threads: set[int] = set()
        all_over = threading.Event()

        def callback(work: Work) -> None:
            threads.add(threading.get_ident())
            seen.append(work.tag)
            if len(seen) == number:
                all_over.set()

        for tag in range(number):
            backend.recv(np.zeros(1), peer, tag, LONG, async_op=True).add_done_callback(callback)
        backend.barrier(LONG)
        for tag in range(number):
            backend.send(np.zeros(1), peer, tag, LONG)
        assert all_over.wait(LONG)
        assert threading.get_ident() not in threads
        return len(threads), sorted(tag for tag in seen if tag is not None)

    assert thread_world(2, body) == [(1, list(range(300)))] * 2


def test_a_callback_that_fails_is_logged_and_leaves_the_others_alone(
    thread_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    logger = logging.getLogger("torsh_runtime")
    monkeypatch.setattr(logger, "handle", lambda record: logged.append(record.getMessage()))

    def body(backend: Backend) -> Any:
        called = threading.Event()
        works = [backend.recv(np.zeros(1), 1 - backend.rank, tag, LONG, True) for tag in (0, 1)]
        works[0].add_done_callback(lambda work: {}[work])  # type: ignore[misc]
        works[1].add_done_callback(lambda work: called.set())
        backend.barrier(LONG)
        for tag in (0, 1):
            backend.send(np.zeros(1), 1 - backend.rank, tag, LONG)
        return called.wait(LONG)

    assert thread_world(2, body) == [True, True]
    assert logged == ["a callback of an asynchronous operation has failed"] * 2


def test_callbacks_are_called_when_the_group_is_aborted(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        failed: list[type] = []
        called = threading.Event()

        def callback(work: Work) -> None:
            failed.append(type(work.exception()))
            called.set()

        work = backend.recv(np.zeros(1), 1 - backend.rank, 0, LONG, async_op=True)
        work.add_done_callback(callback)
        backend.barrier(LONG)
        if backend.rank == 0:
            backend.abort()
        assert called.wait(LONG)
        return failed

    assert thread_world(2, body) == [[CommAborted], [CommAborted]]


@pytest.mark.parametrize("kind", ["message", "collective"])
def test_every_callback_is_called_and_finds_the_result(thread_world: Any, kind: str) -> None:
    def body(backend: Backend) -> Any:
        peer, grid = 1 - backend.rank, np.zeros((50, 4))
        column = grid[:, 1]  # not contiguous: the result is copied home
        seen: list[float] = []
        called = threading.Semaphore(0)

        def callback(work: Work) -> None:
            seen.append(float(column.sum()))
            called.release()

        if kind == "message":
            work = backend.recv(column, peer, 5, LONG, async_op=True)
        else:
            column[:] = 1
            if backend.rank == 0:  # so that the other rank's is still under way
                backend.recv(np.zeros(1), 1, 0, LONG)
            work = backend.all_reduce(column, ReduceOp.SUM, LONG, async_op=True)
        works = [work.get_future().then(lambda done: done.value()) for _ in range(2)]
        for _ in range(3):
            work.add_done_callback(callback)
        if kind == "message":
            backend.barrier(LONG)
            backend.send(np.full(50, 2.0), peer, 5, LONG)
        elif backend.rank == 1:
            backend.send(np.zeros(1), 0, 0, LONG)
        for _ in range(3):
            assert called.acquire(timeout=LONG)
        for future in works:
            future.wait(LONG)
        return seen

    assert thread_world(2, body) == [[100.0] * 3] * 2


def test_a_callback_that_exits_leaves_the_others_alone(
    thread_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torsh_runtime"), "handle", lambda record: None)

    def body(backend: Backend) -> Any:
        called = threading.Event()
        works = [backend.recv(np.zeros(1), 1 - backend.rank, tag, LONG, True) for tag in (0, 1)]
        works[0].add_done_callback(lambda work: sys.exit(3))
        works[1].add_done_callback(lambda work: called.set())
        backend.barrier(LONG)
        for tag in (0, 1):
            backend.send(np.zeros(1), 1 - backend.rank, tag, LONG)
        return called.wait(LONG)

    assert thread_world(2, body) == [True, True]


def test_who_probes_again_and_again_hears_that_the_peer_has_left(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        if backend.rank == 1:
            backend.close()
            return None
        until = time.monotonic() + LONG

        def look() -> None:
            while time.monotonic() < until:
                assert backend.probe(1, 0, LONG, wait=False) is None

        with pytest.raises(PeerLost) as caught:
            look()
        return caught.value.rank

    assert thread_world(2, body)[0] == 1


def test_a_group_is_not_left_from_within_its_own_operation(thread_world: Any) -> None:
    def body(backend: Backend) -> Any:
        errors: list[str] = []

        def leave() -> None:
            for act in (backend.close, backend.all_reduce(np.ones(1), SUM, LONG, True).wait):
                with pytest.raises(CommError) as caught:
                    act()
                errors.append(type(caught.value).__name__)

        backend.in_order(leave, async_op=True).wait(LONG)
        backend.barrier(LONG)
        return len(errors)

    assert thread_world(2, body) == [2, 2]


def test_a_later_thread_is_not_taken_for_that_of_a_group_that_was_left(thread_world: Any) -> None:
    """The system gives threads the numbers of earlier ones."""

    def body(backend: Backend) -> Any:
        its_own: list[int] = []
        backend.in_order(lambda: its_own.append(threading.get_ident()), async_op=True).wait(LONG)
        backend.close()
        errors: list[CommError] = []

        def close_again() -> None:
            try:
                backend.close()
            except CommError as error:
                errors.append(error)

        later = [threading.Thread(target=close_again) for _ in range(20)]
        for thread in later:
            thread.start()
        assert its_own[0] in [thread.ident for thread in later]
        for thread in later:
            thread.join(LONG)
        return errors

    assert thread_world(1, body) == [[]]
