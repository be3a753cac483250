"""Worlds to run collectives in, and the check that a test leaves nothing behind."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import torsh_runtime as tr
from torsh_runtime.backends import _native
from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.native import NativeBackend
from torsh_runtime.backends.segment import _tuning

PATIENCE = 120.0
"""Seconds after which a test that hangs is given up."""


class Raised(NamedTuple):
    """What a rank's function raised, where a test wants to see that."""

    error: BaseException


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """No thread, descriptor, child process or /dev/shm entry outlives the test."""
    before = _possessions()
    yield
    after = _possessions()
    for kind, held in after.items():
        assert held <= before[kind], f"left behind: {kind} {held - before[kind]}"


def _possessions() -> dict[str, set[str]]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {
        "threads": {thread.name for thread in threading.enumerate() if thread.is_alive()},
        "children": set(children),
        "descriptors": _descriptors(),
        "shared memory": {name for name in os.listdir("/dev/shm") if "torsh" in name},
    }


def _descriptors() -> set[str]:
    listed = os.listdir("/proc/self/fd")  # the listing's own is among them, and closed by now
    return {number for number in listed if os.path.lexists(f"/proc/self/fd/{number}")}


ThreadWorld = Callable[[int, Callable[[Backend], Any]], list[Any]]
ProcessWorld = Callable[..., list[Any]]


@pytest.fixture
def thread_world() -> ThreadWorld:
    """run(n, body): body(backend) on n threads, each a rank of one native group of this process.

    Returns what each rank returned, Raised(error) where it raised.
    """
    return run_threads


def run_threads(ranks: int, body: Callable[[Backend], Any]) -> list[Any]:
    tuning = _tuning(ranks)
    descriptor = os.memfd_create("torsh-test")
    os.ftruncate(descriptor, _native.segment_bytes(ranks, tuning))
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            group = _native.Group(descriptor, rank, ranks, tuning, [os.getpid()] * ranks)
            results[rank] = body(NativeBackend(group, rank, ranks))
        except BaseException as error:
            results[rank] = Raised(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a rank hangs"
    os.close(descriptor)
    return results


@pytest.fixture
def process_world() -> ProcessWorld:
    """run(n, body, timeout=10): body(rank) in n processes with a default group each.

    Returns what each rank returned, Raised(error) where it raised, None where it was killed.
    """
    return run_processes


def run_processes(ranks: int, body: Callable[[int], Any], timeout: float = 10.0) -> list[Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    pipes, children = [], []
    for rank in range(ranks):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _be_rank(rank, ranks, body, address, timeout, writer)
        os.close(writer)
        pipes.append(reader)
        children.append(child)
    return [_result(reader, child) for reader, child in zip(pipes, children, strict=True)]


def _be_rank(
    rank: int, ranks: int, body: Callable[[int], Any], address: str, timeout: float, writer: int
) -> None:
    try:
        tr.init_process_group("native", address, rank, ranks, timeout)
        result = body(rank)
        tr.destroy_process_group()
    except BaseException as error:
        result = Raised(_portable(error))
    with os.fdopen(writer, "wb") as pipe:
        pickle.dump(result, pipe)
    os._exit(0)


def _portable(error: BaseException) -> BaseException:
    """Errors with facts do not all survive pickling; those cross as a namespace of them."""
    facts = {"kind": type(error).__name__, "text": str(error), **vars(error)}
    facts["trace"] = traceback.format_exc()
    carrier = RuntimeError(facts["text"])
    carrier.__dict__.update(facts)
    return carrier


def _result(reader: int, child: int) -> Any:
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None  # noqa: S301  (our own child)
