"""Worlds to run collectives in: ranks as threads, ranks as processes."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import secrets
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from support.ports import free_address

import torsh_runtime as tr
from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

PATIENCE = 120.0
"""Seconds after which a test that hangs is given up."""
_HANGS = 500.0
"""Seconds after which ranks that are processes are killed; whole suites run in some."""


class Raised(NamedTuple):
    """What a rank's function raised, where a test wants to see that; ChildProcessError if its
    process was killed.
    """

    error: BaseException


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
) -> list[Any]:
    """body(rank) in processes with a default group each; what each rank returned, Raised(error)
    where it raised or was killed. `meanwhile` is called here with their pids.
    """
    address = free_address()

    def start(rank: int, writer: int) -> None:
        be_rank(rank, ranks, body, address, timeout, writer)

    return run_forked(ranks, start, meanwhile)


def run_forked(
    ranks: int,
    start: Callable[[int, int], None],
    meanwhile: Callable[[list[int]], None] | None = None,
) -> list[Any]:
    """start(rank, writer) in processes, each of which calls be_rank(); otherwise the same."""
    pipes, children = [], []
    for rank in range(ranks):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                start(rank, writer)
            finally:
                os._exit(1)
        os.close(writer)
        pipes.append(reader)
        children.append(child)
    deadline = time.monotonic() + _HANGS
    try:
        if meanwhile is not None:
            meanwhile(children)
        return [
            _result(reader, child, deadline) for reader, child in zip(pipes, children, strict=True)
        ]
    except BaseException:
        _end(children)
        raise


def _end(children: list[int]) -> None:
    for child in children:
        with contextlib.suppress(ChildProcessError):  # it has been waited for
            if os.waitpid(child, os.WNOHANG)[0] == 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def run_in_one_world(
    ranks: int, bodies: Mapping[Any, Callable[[int], Any]], timeout: float = 10.0
) -> dict[Any, list[Any]]:
    """As run_processes() with each of the bodies, but one after the other in the same processes,
    which saves starting them anew. A rank that raised goes on with the next one.
    """

    def run_all(rank: int) -> dict[Any, Any]:
        return {key: _tried(body, rank) for key, body in bodies.items()}

    results = run_processes(ranks, run_all, timeout)
    return {
        key: [each if isinstance(each, Raised) else each[key] for each in results] for key in bodies
    }


def _tried(body: Callable[[int], Any], rank: int) -> Any:
    try:
        return body(rank)
    except Exception as error:
        return Raised(_portable(error))


def be_rank(
    rank: int, ranks: int, body: Callable[[int], Any], address: str, timeout: float, writer: int
) -> None:
    """Be this rank in a process that was forked for it, and end it; tell `writer` the result."""
    if "torch" in sys.modules:  # the threads that this process had for it were not forked
        sys.modules["torch"].set_num_threads(1)
    try:
        tr.init_process_group("native", address, timeout, ranks, rank)
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


def _result(reader: int, child: int, deadline: float) -> Any:
    data = b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            piece = pipe.read(1 << 16)
            if not piece:
                break
            data += piece
        else:
            os.kill(child, signal.SIGKILL)
            data = pickle.dumps(Raised(_portable(TimeoutError(f"it hung for {_HANGS:g} s"))))
    _, status = os.waitpid(child, 0)
    if data:
        return pickle.loads(data)  # noqa: S301  (our own child)
    return Raised(_portable(ChildProcessError(ended(status))))


def ended(status: int) -> str:
    """How a process ended that waitpid() has this status of, in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
