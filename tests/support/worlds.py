"""Worlds to run collectives in: ranks as threads, ranks as processes."""

from __future__ import annotations

import gc
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from support.forked import HANGS, Raised, run_forked, tried
from support.ports import free_address

import torsh_runtime as tr
from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

PATIENCE = 120.0
"""Seconds after which a test that hangs is given up."""


def run_threads(ranks: int, body: Callable[[Backend], Any]) -> list[Any]:
    """body(backend) on threads of this process; what each rank returned, or Raised(error)."""
    results: list[Any] = [None] * ranks
    hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")

    def in_group(rank: int) -> Any:
        with (
            StoreClient.connect(hosted.endpoint, b"", PATIENCE) as store,
            closing(NativeBackend.connect(store, rank, ranks, PATIENCE)) as backend,
        ):
            return body(backend)

    def run(rank: int) -> None:
        try:
            results[rank] = in_group(rank)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they hold on to the group
            results[rank] = Raised(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a rank hangs"
    finally:
        hosted.close()
    gc.collect(1)  # errors that a body caught make cycles, and groups in them hold descriptors
    return results


def run_processes(
    ranks: int,
    body: Callable[[int], Any],
    timeout: float = 10.0,
    meanwhile: Callable[[list[int]], None] | None = None,
    hangs: float = HANGS,
) -> list[Any]:
    """body(rank) in processes with a default group each; what each rank returned, Raised(error)
    where it raised or was killed, as after `hangs` seconds. `meanwhile` is called here with their
    pids.
    """
    address = free_address()

    def start(rank: int) -> Any:
        return be_rank(rank, ranks, body, address, timeout)

    return run_forked(ranks, start, meanwhile, hangs)


def run_in_one_world(
    ranks: int,
    bodies: Mapping[Any, Callable[[int], Any]],
    timeout: float = 10.0,
    hangs: float = HANGS,
) -> dict[Any, list[Any]]:
    """As run_processes() with each of the bodies, but one after the other in the same processes,
    which saves starting them anew. A rank that raised goes on with the next one.
    """

    def run_all(rank: int) -> dict[Any, Any]:
        return {key: tried(body, rank) for key, body in bodies.items()}

    results = run_processes(ranks, run_all, timeout, hangs=hangs)
    return {
        key: [each if isinstance(each, Raised) else each[key] for each in results] for key in bodies
    }


def be_rank(
    rank: int,
    ranks: int,
    body: Callable[[int], Any],
    address: str | None = None,
    timeout: float = 10.0,
) -> Any:
    """body(rank) in this process, with a default group; what it returned."""
    address = address or free_address()
    tr.init_process_group("native", address, timeout, ranks, rank)
    result = body(rank)
    tr.destroy_process_group()
    return result


@contextmanager
def silent(hosted: HostedStore) -> Iterator[None]:
    """While it is open, the store's thread is busy, so that it answers nothing."""
    loop, _ = hosted._ready.result()
    over = threading.Event()
    loop.call_soon_threadsafe(over.wait, PATIENCE)
    try:
        yield
    finally:
        over.set()
