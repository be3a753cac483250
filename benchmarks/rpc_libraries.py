"""Defines ways for rank 0 to have rank 1 call a function.

These are RPC of ours and of torch, multiprocessing's connections and plain messages. Runs in each
library's own environment.
"""

from __future__ import annotations

import importlib
import os
import site
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Call = Callable[[], Any]
NOTHING, FUTURES = "nothing", "futures of nothing"
ARRAY, TENSOR, FAR = "numpy array", "torch tensor", "numpy array far"
CALL, IDLE, WINDOW, BURST = "call", "call when idle", "calls in a window", "calls at once"
CALLS_AT_ONCE = 1000
"""Number of calls in a burst; a tenth of that are under way in a window."""
_TIMEOUT = 120.0
_KEY = b"benchmark"
_SERVED = threading.Event()
"""Set on rank 1 when no more calls follow."""


class Library(Protocol):
    """Represents two ranks of which the second serves the first."""

    def bind(self, operation: str, argument: Any) -> Call:
        """Return a function that makes one call, or CALLS_AT_ONCE of them, on rank 0."""

    def expect(self, calls: int) -> None:
        """Tell rank 1, from rank 0, how many calls follow; 0: none at all."""

    def serve(self, argument: Any) -> None:
        """Answer calls with such arguments, on rank 1, until no more follow."""

    def close(self) -> None:
        """Close the library on both ranks."""


def take(*argument: Any) -> None:
    """Do nothing; this is the function that is called."""


def checksum(argument: Any) -> float:
    """Return the sum of an array or a tensor as received."""
    return float(argument.sum())


def note_end() -> None:
    """Record the end of calls. Rank 0 calls it last for each size."""
    _SERVED.set()


class Rpc:
    """Calls with RPC of torch's API."""

    def __init__(self, module: str, rank: int) -> None:
        self._rpc = importlib.import_module(module)
        self._rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)

    def bind(self, operation: str, argument: Any) -> Call:
        args = () if argument is None else (argument,)
        if argument is not None:
            came = self._rpc.rpc_sync("worker1", checksum, args=args)
            if came != checksum(argument):
                raise ValueError(f"WRONG RESULT: {came} came of {checksum(argument)}")
        if operation == WINDOW:
            return self._window
        if operation == BURST:
            return self._burst
        return lambda: self._rpc.rpc_sync("worker1", take, args=args)

    def _window(self) -> None:
        """Make CALLS_AT_ONCE calls, of which a tenth are under way at any time."""
        calls = [self._start() for _ in range(CALLS_AT_ONCE // 10)]
        for number in range(CALLS_AT_ONCE):
            calls[number % len(calls)].wait()
            if number < CALLS_AT_ONCE - len(calls):
                calls[number % len(calls)] = self._start()

    def _burst(self) -> None:
        """Start all calls, then wait for all."""
        for call in [self._start() for _ in range(CALLS_AT_ONCE)]:
            call.wait()

    def _start(self) -> Any:
        return self._rpc.rpc_async("worker1", take)

    def expect(self, calls: int) -> None:
        if calls == 0:
            self._rpc.rpc_sync("worker1", note_end)

    def serve(self, argument: Any) -> None:
        """Wait while the library's threads answer calls."""
        if not _SERVED.wait(_TIMEOUT):
            raise TimeoutError("rank 0 did not come to an end")
        _SERVED.clear()

    def close(self) -> None:
        self._rpc.shutdown()


class Connection:
    """Calls over a connection of multiprocessing on a Unix socket: pickled calls and results."""

    def __init__(self, folder: Path, rank: int) -> None:
        from multiprocessing.connection import Client, Listener

        address = str(folder / "socket")
        if rank == 1:
            with Listener(address, "AF_UNIX", authkey=_KEY) as listener:
                (folder / "listens").touch()
                self._peer: Any = listener.accept()
            return
        wait_for(folder / "listens")
        self._peer = Client(address, authkey=_KEY)

    def bind(self, operation: str, argument: Any) -> Call:
        args = () if argument is None else (argument,)

        def call() -> Any:
            self._peer.send((take, args))
            return self._peer.recv()

        return call

    def expect(self, calls: int) -> None:
        self._peer.send(calls)

    def serve(self, argument: Any) -> None:
        while calls := self._peer.recv():
            for _ in range(calls):
                function, args = self._peer.recv()
                self._peer.send(function(*args))

    def close(self) -> None:
        self._peer.close()


class Messages:
    """Calls with torsh's send and recv.

    Without an argument objects are sent; otherwise the array is received into an existing one, and
    answered by one element.
    """

    def __init__(self, rank: int) -> None:
        import numpy as np

        import torsh_runtime as tr

        self._tr = tr
        tr.init_process_group(timeout=_TIMEOUT)
        self._answer, self._count = np.zeros(1), np.zeros(1, np.int64)

    def bind(self, operation: str, argument: Any) -> Call:
        answer: list[Any] = [None]

        def objects() -> None:
            self._tr.send_object_list([None], 1)
            self._tr.recv_object_list(answer, 1)

        def array() -> None:
            self._tr.send(argument, 1)
            self._tr.recv(self._answer, 1)

        return objects if argument is None else array

    def expect(self, calls: int) -> None:
        self._count[:] = calls
        self._tr.send(self._count, 1)

    def serve(self, argument: Any) -> None:
        call: list[Any] = [None]
        while self._expected():
            for _ in range(int(self._count[0])):
                if argument is None:
                    self._tr.recv_object_list(call, 0)
                    self._tr.send_object_list([None], 0)
                else:
                    self._tr.recv(argument, 0)
                    self._tr.send(self._answer, 0)

    def _expected(self) -> bool:
        self._tr.recv(self._count, 0)
        return bool(self._count[0])

    def close(self) -> None:
        self._tr.destroy_process_group()


def connect(name: str, plan: dict[str, Any], folder: Path) -> Library:
    """Return this rank's end of the library that the plan names. The environment has the rank."""
    rank = int(os.environ["RANK"])
    if name in ("ours", "send"):
        site.addsitedir(plan["site"])  # for torsh_runtime, after torch's own environment
    if name == "connection":
        return Connection(folder, rank)
    if name == "send":
        return Messages(rank)
    return Rpc("torsh_runtime.rpc" if name == "ours" else "torch.distributed.rpc", rank)


def argument_of(kind: str, nbytes: int) -> Any:
    """Return the argument of each call: float32 values that have been touched, or None."""
    if kind in (NOTHING, FUTURES):
        return None
    if kind == TENSOR:
        import torch

        torch.set_num_threads(1)
        return torch.ones(nbytes // 4)
    import numpy as np

    return np.ones(nbytes // 4, np.float32)


def wait_for(path: Path, seconds: float = _TIMEOUT) -> None:
    """Wait until the other rank has made this file. Raises TimeoutError if it does not appear."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear")
        time.sleep(0.01)


def memory_kib() -> int:
    """Return the resident memory of this process in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
