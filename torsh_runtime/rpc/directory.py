"""The directory of workers that can be called: each worker's entry in the job's store.

worker/<id>  the Worker with this id
name/<name>  the id of the worker with this name
"""

from __future__ import annotations

import operator
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

import msgpack

from torsh_runtime.backends.native.host_info import Node, node_here
from torsh_runtime.errors import CommError, CommTimeout, ConfigError, StoreError, StoreTimeout
from torsh_runtime.rpc.failures import CallRefused
from torsh_runtime.rpc.options import WorkerInfo
from torsh_runtime.store.base import Compare, Delete
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.wire import NONCE_BYTES

LONGEST_NAME = 128
_KNOWN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Worker:
    """Holds what a worker publishes about itself."""

    info: WorkerInfo
    host: str
    """Host name, for messages."""
    node: Node
    pid: int
    near: Sequence[str]
    """Abstract sockets at which it listens for workers of its node."""
    far: Sequence[tuple[str, int]]
    """Addresses and ports at which it listens for all others."""
    token: bytes
    """Token of this life of the worker, with which it proves itself."""

    def pack(self) -> bytes:
        """Return the worker as bytes for the store."""
        packed: bytes = msgpack.packb(
            [
                *self.info,
                self.host,
                list(self.node),
                self.pid,
                list(self.near),
                self.far,
                self.token,
            ]
        )
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Worker:
        """Return the worker that pack() made bytes of. Raises CommError for any other bytes."""
        try:
            name, number, host, node, pid, near, far, token = msgpack.unpackb(data)
            worker = cls(
                WorkerInfo(str(name), int(number)),
                str(host),
                Node(*map(str, node)),
                int(pid),
                [str(each) for each in near],
                [(str(ip_address(address)), int(port)) for address, port in far],
                bytes(token),
            )
            if len(worker.token) != NONCE_BYTES:
                raise ValueError
            return worker
        except (TypeError, ValueError, msgpack.UnpackException):
            raise CommError(
                "a worker introduced itself with words that this one does not understand. Install "
                "the same version of torsh_runtime on all nodes."
            ) from None

    def is_near(self, other: Worker) -> bool:
        """Return whether the two can use abstract sockets. Containers of a host may share these
        though they do not see each other's processes."""
        one, two = self.node, other.node
        return (one.machine, one.network) == (two.machine, two.network)

    @property
    def text(self) -> str:
        """Return a description for errors."""
        return f"{self.info.name!r} (rank {self.info.id}, host {self.host})"


class Directory:
    """Keeps one worker's view of all workers."""

    def __init__(self, client: StoreClient, own: Worker, world_size: int | None) -> None:
        """Create the directory. With `world_size` None, workers come and go."""
        self.own = own
        self.world_size = world_size
        self._client = client
        self._lock = threading.Lock()
        self._workers: dict[int, Worker] = {own.info.id: own}
        self._ids: dict[str, int] = {own.info.name: own.info.id}
        self._is_known = threading.Event()
        """Set once this worker knows all workers of a world size. Calls may come before that."""
        if world_size is None:
            self._is_known.set()

    @property
    def store(self) -> StoreClient:
        """Return the store of the directory, which also keeps other data of the workers."""
        return self._client

    def namesake(self) -> Worker | None:
        """Return the worker that had this worker's name or id before, where workers come and go,
        else None."""
        if self.world_size is not None:
            return None
        return self._looked_up(self.own.info.name) or self._looked_up(self.own.info)

    def enter(self, timeout: float) -> None:
        """Tell the others of this worker. With a world size, wait for all of them.

        Raises ConfigError if another worker has its name, CommTimeout naming the ranks that did not
        come.
        """
        self._learn(self.own)
        info = self.own.info
        self._client.put(f"worker/{info.id}", self.own.pack())
        if self.world_size is None:
            self._client.put(f"name/{info.name}", str(info.id).encode())
            return
        keys = {f"worker/{number}": number for number in range(self.world_size)}
        try:
            found = self._client.wait(list(keys), timeout)
        except StoreTimeout:
            missing = [number for key, number in keys.items() if self._client.get(key) is None]
            raise CommTimeout("init_rpc", 0, timeout, missing) from None
        for key in keys:
            self._learn(Worker.unpack(found[key].value))
        self._is_known.set()
        if len(self._ids) < self.world_size:
            names = [worker.info.name for worker in self._workers.values()]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(
                f"several workers have the name {', '.join(map(repr, twice))}: give each worker a "
                f"name of its own, such as f'worker{{rank}}'"
            )

    def leave(self) -> None:
        """Remove this worker's entries, where workers come and go."""
        if self.world_size is None:
            self.remove(self.own)

    def entry(self, number: int) -> Worker | None:
        """Return the worker that has the id now, where workers come and go, else None."""
        entry = self._client.get(f"worker/{number}") if self.world_size is None else None
        return Worker.unpack(entry.value) if entry else None

    def remove(self, worker: Worker) -> None:
        """Remove the worker's entries, unless another worker has its id by now."""
        name, key = f"name/{worker.info.name}", f"worker/{worker.info.id}"
        entry = self._client.get(key)
        if entry is not None and entry.value == worker.pack():
            self._client.transact([Compare(key, entry.revision)], [Delete(key), Delete(name)])
        self.forget(worker)

    def close(self) -> None:
        """Close the connection to the store."""
        self._client.close()

    def find(self, to: str | int | WorkerInfo) -> Worker:
        """Return the worker of this name or id, as it was last known. Raises CallRefused if there
        is none."""
        with self._lock:
            known = self._known(to)
        if known is None and not self._is_known.is_set():
            self._is_known.wait(_KNOWN_SECONDS)
            with self._lock:
                known = self._known(to)
        if known is None and self.world_size is None:
            known = self._looked_up(to)
        if known is None:
            raise CallRefused(f"there is no worker {_text(to)} to be called: {self._names()}")
        return known

    def refreshed(self, worker: Worker) -> Worker:
        """Return the worker as the store knows it now, since it may have been started again."""
        if self.world_size is not None:
            return worker
        try:
            return self._looked_up(worker.info.name) or worker
        except StoreError:  # it may have ended with the worker that served it
            return worker

    def all(self) -> list[Worker]:
        """Return all workers that there are, ordered by id."""
        if self.world_size is None:
            there = [Worker.unpack(entry.value) for entry in self._client.list("worker/").items]
            return sorted(map(self._learn, there), key=lambda worker: worker.info.id)
        self._is_known.wait(_KNOWN_SECONDS)
        with self._lock:
            return [worker for _, worker in sorted(self._workers.items())]

    def forget(self, worker: Worker) -> None:
        """Forget a worker that has ended, so that the next find() asks the store."""
        if self.world_size is None:
            with self._lock:
                if self._workers.get(worker.info.id) == worker:
                    del self._workers[worker.info.id]
                    self._ids.pop(worker.info.name, None)

    def _known(self, to: str | int | WorkerInfo) -> Worker | None:
        if isinstance(to, str):
            number = self._ids.get(to)
            return None if number is None else self._workers.get(number)
        if isinstance(to, WorkerInfo):
            known = self._workers.get(to.id)
            return known if known is None or known.info == to else None
        with suppress(TypeError):
            if not isinstance(to, bool):
                return self._workers.get(operator.index(to))
        raise TypeError(f"a worker is named by its name, rank or WorkerInfo, not by {to!r}")

    def _looked_up(self, to: str | int | WorkerInfo) -> Worker | None:
        number: int | None
        if isinstance(to, str):
            entry = self._client.get(f"name/{to}") if to else None
            number = int(entry.value) if entry else None
        else:
            number = to.id if isinstance(to, WorkerInfo) else to
        entry = self._client.get(f"worker/{number}") if number is not None else None
        return self._learn(Worker.unpack(entry.value)) if entry else None

    def _learn(self, worker: Worker) -> Worker:
        with self._lock:
            self._workers[worker.info.id] = worker
            self._ids[worker.info.name] = worker.info.id
        return worker

    def _names(self) -> str:
        try:
            names = [worker.info.name for worker in self.all()]
        except StoreError as error:
            return f"and the store does not answer: {error}"
        shown = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
        return f"there are {shown}"


def check_name(name: object) -> str:
    """Return `name`. Raises ConfigError unless it can be a worker's name."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ConfigError(
            f"a worker's name is a text of 1 to {LONGEST_NAME} printable characters, not {name!r}"
        )
    return name


def worker_here(
    info: WorkerInfo, near: Sequence[str], far: Sequence[tuple[str, int]], token: bytes
) -> Worker:
    """Return this process as a worker that listens at these addresses."""
    return Worker(info, socket.gethostname(), node_here(), os.getpid(), near, far, token)


def _text(to: object) -> str:
    return repr(to.name) if isinstance(to, WorkerInfo) else repr(to)
