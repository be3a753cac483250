"""Remote calls that are late, stuck, nested, too many or too large."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.processes import soon
from support.rpc_worlds import (
    PATIENCE,
    depth,
    double,
    error_of,
    kill,
    name_here,
    note,
    run_workers,
    seen,
    touch_and_wait,
    wait_for,
)

import torsh_runtime.rpc as rpc

SHORT = 0.3
"""Seconds of deadlines that pass in any case."""
LARGE = np.zeros(13 << 20)
"""Two of them may be under way to a worker, and three may not."""


def is_late(error: BaseException, worker: int) -> bool:
    """Whether it says who was late, as all kinds of errors by which programs know that."""
    kinds = isinstance(error, TimeoutError) and isinstance(error, RuntimeError)
    return kinds and f"worker{worker}" in str(error) and not isinstance(error, rpc.RemoteError)


def test_a_stopped_worker_holds_up_nobody_else_and_answers_later(tmp_path: Path) -> None:
    ready, stopped, told, resumed = (tmp_path / name for name in ("a", "b", "c", "d"))

    def body(rank: int) -> Any:
        if rank == 1:
            return None
        if rank == 0:
            rpc.rpc_sync("worker1", name_here)  # worker 2 has no connection to it yet
            ready.touch()
        wait_for(stopped)
        late = [error_of(lambda: call_double(1, 0)) for _ in range(3)]
        other = [rpc.rpc_sync(f"worker{2 - rank}", double, args=(number,)) for number in range(9)]
        (told if rank == 0 else tmp_path / "told too").touch()
        wait_for(resumed)
        again = [call_double(1, number, PATIENCE) for number in range(10, 20)]
        return [is_late(error, 1) for error in late], other, again

    def meanwhile(pids: list[int]) -> None:
        wait_for(ready)
        kill(pids[1], signal.SIGSTOP)
        os.waitid(os.P_PID, pids[1], os.WSTOPPED | os.WNOWAIT)
        stopped.touch()
        wait_for(told, tmp_path / "told too")
        kill(pids[1], signal.SIGCONT)
        resumed.touch()

    right = [True] * 3, [2 * each for each in range(9)], [2 * each for each in range(10, 20)]
    assert run_workers(3, body, meanwhile) == [right, None, right]


def call_double(to: int, number: int, timeout: float = SHORT) -> Any:
    return rpc.rpc_sync(f"worker{to}", double, args=(number,), timeout=timeout)


def test_shutdown_names_a_stopped_worker_and_ends(tmp_path: Path) -> None:
    ready, stopped, over = (tmp_path / name for name in ("ready", "stopped", "over"))

    def body(rank: int) -> Any:
        if rank:
            ready.touch()
            wait_for(over)
            return None
        wait_for(stopped)
        error = error_of(lambda: rpc.shutdown(timeout=SHORT))
        over.touch()
        return is_late(error, 1), rpc.is_initialized()

    def meanwhile(pids: list[int]) -> None:
        wait_for(ready)
        kill(pids[1], signal.SIGSTOP)
        os.waitid(os.P_PID, pids[1], os.WSTOPPED | os.WNOWAIT)
        stopped.touch()
        wait_for(over)
        kill(pids[1], signal.SIGCONT)

    assert run_workers(2, body, meanwhile)[0] == (True, False)


def inner(touched: Path, awaited: Path) -> None:
    """A call without a deadline of its own, within a call that has one."""
    note(error_of(lambda: rpc.rpc_sync("worker2", touch_and_wait, (touched, awaited), timeout=0)))


def test_a_deadline_travels_with_the_calls_of_a_call(tmp_path: Path) -> None:
    touched, awaited = tmp_path / "touched", tmp_path / "awaited"

    def body(rank: int) -> Any:
        if rank:
            return None
        call = "worker1", inner, (touched, awaited)
        late = error_of(lambda: rpc.rpc_sync(*call, timeout=SHORT))
        assert soon(lambda: bool(rpc.rpc_sync("worker1", seen)), PATIENCE)
        [within] = rpc.rpc_sync("worker1", seen)
        awaited.touch()
        return is_late(late, 1), is_late(within, 2)

    assert run_workers(3, body)[0] == (True, True)


def test_what_has_not_begun_by_its_deadline_never_does(tmp_path: Path) -> None:
    touched, awaited = tmp_path / "touched", tmp_path / "awaited"

    def body(rank: int) -> Any:
        if rank:
            return None
        busy = rpc.rpc_async("worker1", touch_and_wait, args=(touched, awaited))
        wait_for(touched)
        late = error_of(lambda: rpc.rpc_sync("worker1", note, args=("late",), timeout=SHORT))
        time.sleep(1)  # the worker counts the deadline from when the call has come
        awaited.touch()
        result = busy.wait()
        rpc.rpc_sync("worker1", note, args=("in time",))
        return is_late(late, 1), result, rpc.rpc_sync("worker1", seen)

    found = run_workers(2, body, num_worker_threads=1)[0]
    assert found == (True, "worker1", ["in time"])


def test_calls_200_deep_with_one_thread() -> None:
    def body(rank: int) -> Any:
        return rpc.rpc_sync(f"worker{1 - rank}", depth, args=(200,))

    assert run_workers(2, body, num_worker_threads=1) == [200, 200]


def test_more_bytes_than_may_be_under_way_wait_for_their_deadline(tmp_path: Path) -> None:
    begun, awaited = tmp_path / "begun", tmp_path / "awaited"

    def body(rank: int) -> Any:
        if rank:
            return None
        calls = [rpc.rpc_async("worker1", touch_and_wait, (begun, awaited))]
        wait_for(begun)  # nothing else is begun there, which has one thread
        calls += [rpc.rpc_async("worker1", len, (LARGE,)) for _ in range(2)]
        late = error_of(lambda: rpc.rpc_async("worker1", len, (LARGE,), timeout=SHORT))
        small = rpc.rpc_sync("worker2", double, args=(21,))
        finishing: list[Any] = []
        waiting = threading.Thread(
            target=lambda: finishing.append(rpc.rpc_sync("worker1", len, args=(LARGE,)))
        )
        waiting.start()
        awaited.touch()
        waiting.join()
        told = is_late(late, 1), "under way" in str(late)
        return told, small, [each.wait() for each in calls[1:]], finishing

    expected = (True, True), 42, [LARGE.size] * 2, [LARGE.size]
    assert run_workers(3, body, num_worker_threads=1)[0] == expected


def test_what_is_begun_is_no_longer_under_way() -> None:
    def body(rank: int) -> Any:
        return rpc.rpc_sync("worker1", hand_back, args=(LARGE, 5)) if rank == 0 else None

    assert run_workers(2, body)[0] == LARGE.size


def hand_back(array: Any, times: int) -> int:
    """Calls of calls, each with the array."""
    if times == 0:
        return int(array.size)
    other = 1 - rpc.get_worker_info().id
    return int(rpc.rpc_sync(other, hand_back, args=(array, times - 1)))


def test_one_call_may_be_larger_than_what_may_be_under_way(tmp_path: Path) -> None:
    leaving = tmp_path / "leaving"

    def body(rank: int) -> Any:
        if rank:
            leaving.touch()
            return None
        wait_for(leaving)  # so its own call of shutdown() is under way
        time.sleep(SHORT)
        return rpc.rpc_sync("worker1", largest, args=(np.zeros(40 << 20),)).shape  # 320 MiB

    assert run_workers(2, body)[0] == (40 << 20,)


def largest(array: Any) -> Any:
    return array


def test_futures_of_calls_end_by_their_deadlines_without_anybody_who_waits(tmp_path: Path) -> None:
    touched, awaited = tmp_path / "touched", tmp_path / "awaited"

    def body(rank: int) -> Any:
        if rank:
            return None
        call = rpc.rpc_async("worker1", touch_and_wait, (touched, awaited), timeout=SHORT)
        told: list[bool] = []
        over = threading.Event()
        call.add_done_callback(
            lambda done: (told.append(is_late(error_of(done.value), 1)), over.set())
        )
        over.wait(PATIENCE)
        done = call.done()
        awaited.touch()
        return told, done, is_late(error_of(call.wait), 1)

    assert run_workers(2, body)[0] == ([True], True, True)


def called_back(number: int) -> int:
    """By worker 0, which serves meanwhile."""
    return int(rpc.rpc_sync("worker0", double, args=(number,)))


def test_a_callback_may_wait_for_a_call_that_calls_back() -> None:
    def body(rank: int) -> Any:
        if rank == 1:
            return None
        first = [rpc.rpc_async("worker1", double, args=(number,)) for number in range(4)]
        then = [
            each.then(lambda over: rpc.rpc_sync("worker1", called_back, args=(over.value(),)))
            for each in first
        ]
        return [each.wait(PATIENCE) for each in then]

    assert run_workers(2, body) == [[0, 4, 8, 12], None]
