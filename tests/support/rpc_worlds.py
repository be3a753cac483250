"""Workers of remote calls as forked processes, and functions for them to call."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.forked import run_forked
from support.ports import free_address
from support.processes import soon

import torsh_runtime.rpc as rpc

PATIENCE = 60.0
"""Seconds after which a test hangs, however busy the machine is."""
SECRET = "5e" * 32
SEEN: list[Any] = []
"""Of this process: what functions below have noted."""
_TRACKED: weakref.WeakSet[Tracked] = weakref.WeakSet()


def run_workers(
    count: int,
    body: Callable[[int], Any],
    meanwhile: Callable[[list[int]], None] | None = None,
    **options: Any,
) -> list[Any]:
    """body(rank) on workers "worker0" and so on; what each returned, Raised(error) where it raised
    or was killed. All of them come to shutdown()."""
    address = free_address()

    def be_worker(rank: int) -> Any:
        join(f"worker{rank}", rank, address, count, **options)
        try:
            return body(rank)
        finally:
            if rpc.is_initialized():
                rpc.shutdown()

    return run_forked(count, be_worker, meanwhile)


def join(name: str, rank: int, address: str, world_size: int | None = None, **options: Any) -> None:
    """init_rpc() by hand; without a size of the world workers come and go."""
    os.environ["TORSH_SECRET"] = SECRET
    given = {"rpc_timeout": PATIENCE, "init_method": address, **options}
    rpc.init_rpc(name, None, rank, world_size, rpc.RpcBackendOptions(**given))


def wait_for(*paths: Path) -> None:
    """Until other processes have made these files."""
    assert soon(lambda: all(path.exists() for path in paths), PATIENCE), paths


def kill(pid: int, signo: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signo)


def error_of(call: Callable[[], Any]) -> Exception:
    """What the call raises."""
    try:
        result = call()
    except Exception as error:
        return error
    raise AssertionError(f"it returned {result!r}")


def name_here() -> str:
    return rpc.get_worker_info().name


def pid_here() -> int:
    return os.getpid()


def double(value: Any) -> Any:
    return 2 * value


def touch_and_wait(touched: Path, awaited: Path) -> str:
    """Runs until somebody makes the second file."""
    touched.touch()
    wait_for(awaited)
    return name_here()


def note(value: Any) -> None:
    SEEN.append(value)


def seen() -> list[Any]:
    return SEEN


def depth(left: int) -> int:
    """Two workers call each other in turns; how deep."""
    if left == 0:
        return 0
    to = 1 - rpc.get_worker_info().id
    return 1 + rpc.rpc_sync(f"worker{to}", depth, args=(left - 1,))


class Tracked:
    """An object of which its process sees when nothing refers to it any more."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        _TRACKED.add(self)

    def who(self) -> str:
        return self.name


def tracked() -> list[str]:
    """Names of those that are alive here."""
    return sorted(each.name for each in _TRACKED)


def keep(reference: Any) -> None:
    """As long as this process lives."""
    SEEN.append(reference)


def forget() -> None:
    SEEN.clear()
