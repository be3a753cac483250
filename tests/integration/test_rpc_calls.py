"""Remote calls of all kinds between workers, many at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import logging
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.rpc_worlds import (
    Tracked,
    double,
    error_of,
    forget,
    keep,
    name_here,
    run_workers,
    touch_and_wait,
    tracked,
)

import torsh_runtime.rpc as rpc

WORKERS = 3
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


def fetch(*references: Any) -> list[Any]:
    return [reference.to_here() for reference in references]


def through(to: str, value: Any) -> Any:
    return rpc.rpc_sync(to, double, args=(value,))


@rpc.functions.async_execution
def later(to: str, value: Any) -> Any:
    return rpc.rpc_async(to, double, args=(value,)).then(lambda done: done.value() + 1)


@rpc.functions.async_execution
def in_a_pool(value: Any) -> Any:
    """The future is that of concurrent.futures."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(double, value)
    pool.shutdown(wait=False)
    return future


@rpc.functions.async_execution
def by_torch(value: Any) -> Any:
    """The future is torch's, as programs written for torch have it."""
    import torch

    future: Any = torch.futures.Future()
    threading.Timer(0.01, lambda: future.set_result(2 * value)).start()
    return future


class Mixed:
    """Calls of all kinds with random values, and whether all were right."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.wrong: list[str] = []

    def run(self, calls: int) -> None:
        kinds = (
            self.sync, self.array, self.together, self.reference, self.handed_on, self.nested,
            self.awaited, self.without_a_thread,
        )  # fmt: skip
        for number in range(calls):
            to = f"worker{self.random.randrange(WORKERS)}"
            kind = self.random.choice(kinds)
            try:
                assert kind(to, number)
            except BaseException as error:
                self.wrong.append(f"{kind.__name__} on {to}: {error!r}")
                return

    def sync(self, to: str, number: int) -> bool:
        return bool(rpc.rpc_sync(to, double, args=(number,)) == 2 * number)

    def array(self, to: str, number: int) -> bool:
        array = np.full(self.random.choice([0, 1, 1000, 200_000]), number)
        return bool((rpc.rpc_sync(to, double, args=(array,)) == 2 * array).all())

    def together(self, to: str, number: int) -> bool:
        calls = [rpc.rpc_async(to, double, args=(each,)) for each in range(20)]
        return rpc.wait_all(calls) == [2 * each for each in range(20)]

    def reference(self, to: str, number: int) -> bool:
        return bool(rpc.remote(to, double, args=(number,)).to_here() == 2 * number)

    def handed_on(self, to: str, number: int) -> bool:
        third = f"worker{self.random.randrange(WORKERS)}"
        references = rpc.RRef(number), rpc.remote(third, double, args=(number,)), rpc.RRef(0)
        return bool(rpc.rpc_sync(to, fetch, args=references) == [number, 2 * number, 0])

    def nested(self, to: str, number: int) -> bool:
        third = f"worker{self.random.randrange(WORKERS)}"
        return bool(rpc.rpc_sync(to, through, args=(third, number)) == 2 * number)

    def awaited(self, to: str, number: int) -> bool:
        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(one(each) for each in range(10)))

        async def one(value: int) -> Any:
            return await rpc.rpc_async(to, double, args=(value,))

        return asyncio.run(all_of_them()) == [2 * each for each in range(10)]

    def without_a_thread(self, to: str, number: int) -> bool:
        third = f"worker{self.random.randrange(WORKERS)}"
        return bool(rpc.rpc_sync(to, later, args=(third, number)) == 2 * number + 1)


def test_calls_of_all_kinds_from_several_threads_of_all_workers_are_right() -> None:
    def body(rank: int) -> list[str]:
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("torsh_runtime").addHandler(handler)
        mixed = [Mixed(10 * rank + number) for number in range(3)]
        threads = [threading.Thread(target=each.run, args=(60,)) for each in mixed]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rpc.shutdown()
        return [text for each in mixed for text in each.wrong] + records

    assert run_workers(WORKERS, body, rpc_timeout=30) == [[]] * WORKERS


def test_a_value_may_be_asked_for_before_it_is_made_and_where_it_is() -> None:
    def body(rank: int) -> Any:
        made = []
        for number in range(100):
            for to in ("worker0", "worker1"):
                reference = rpc.remote(to, double, args=(number,))
                made.append(reference.to_here() == 2 * number)
        return set(made)

    assert run_workers(2, body, rpc_timeout=20) == [{True}] * 2


def test_an_executor_runs_functions_on_other_workers(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        if rank:
            return None
        touched, gate = tmp_path / "touched", tmp_path / "gate"
        with rpc.Executor() as executor:
            submitted = [executor.submit(touch_and_wait, touched, gate) for _ in range(8)]
            gate.touch()
            names = [future.result() for future in submitted]
            mapped = list(executor.map(double, range(5)))
            failed = executor.submit(divide, 1, 0).exception()

        async def in_a_loop() -> Any:
            loop = asyncio.get_running_loop()
            with rpc.Executor(["worker1"]) as chosen:
                return await loop.run_in_executor(chosen, name_here)

        return sorted(names), mapped, type(failed), asyncio.run(in_a_loop())

    found = run_workers(WORKERS, body)[0]
    assert found == (
        ["worker1"] * 4 + ["worker2"] * 4,
        [0, 2, 4, 6, 8],
        ZeroDivisionError,
        "worker1",
    )


def divide(one: float, by: float) -> float:
    return one / by


@needs_torch
@pytest.mark.torch
def test_functions_may_give_futures_of_other_libraries() -> None:
    def body(rank: int) -> Any:
        if rank:
            return None
        calls = [rpc.rpc_async("worker1", in_a_pool, args=(number,)) for number in range(5)]
        pooled = rpc.wait_all(calls)
        return pooled, rpc.rpc_sync("worker1", by_torch, args=(21,))

    assert run_workers(2, body)[0] == ([0, 2, 4, 6, 8], 42)


def test_values_live_as_long_as_anybody_refers_to_them() -> None:
    def body(rank: int) -> Any:
        if rank:
            return None
        reference = rpc.remote("worker1", Tracked, args=("one",))
        name = reference.rpc_sync().who()
        rpc.rpc_sync("worker2", keep, args=(reference,))
        del reference
        kept = rpc.rpc_sync("worker1", tracked)
        rpc.rpc_sync("worker2", forget)
        deadline = time.monotonic() + 60
        while rpc.rpc_sync("worker1", tracked) and time.monotonic() < deadline:
            time.sleep(0.01)
        missing = error_of(lambda: rpc.remote("worker1", "unheard of").to_here())
        return name, kept, rpc.rpc_sync("worker1", tracked), "unheard of" in str(missing)

    assert run_workers(WORKERS, body)[0] == ("one", ["one"], [], True)
