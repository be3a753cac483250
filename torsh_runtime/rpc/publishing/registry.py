"""The writers of published names, in the store that all workers reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic
from typing import NamedTuple

import msgpack

from torsh_runtime.backends.native.host_info import Node, node_here
from torsh_runtime.errors import ConfigError, StoreTimeout
from torsh_runtime.rpc.options import WorkerInfo
from torsh_runtime.store.base import Compare, Delete, Put
from torsh_runtime.store.client import StoreClient

_WRITERS = "publishing/writer/"
_COUNTS = "publishing/writers-so-far/"
VERSIONS = 1_000_000
"""Version numbers that a writer claims at a time."""
_LONGEST_WATCH = 10.0
"""Seconds between two looks at the store's connection."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of a name, and the slots that readers of its node open."""

    info: WorkerInfo
    host: str
    node: Node
    pid: int
    file: int
    """The process's descriptor of the slots' table."""
    token: bytes
    """Bytes that the table begins with."""

    @classmethod
    def here(cls, info: WorkerInfo, host: str, file: int, token: bytes) -> Writer:
        """Return this process as a writer."""
        return cls(info, host, node_here(), os.getpid(), file, token)

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Writer:
        facts = msgpack.unpackb(data)
        return cls(**{**facts, "info": WorkerInfo(*facts["info"]), "node": Node(*facts["node"])})


class NotPublished(ConfigError):
    """A worker does not publish what is asked of it, or no longer."""


class Record(NamedTuple):
    """The store's record of a name."""

    writer: Writer | None
    since: int
    """The store's revision at which the writer was entered; 0 if there is none."""
    seen: int
    """The store's revision at which this was read."""


class Registry:
    """Keeps writers in the store. Any thread may use it. Raises StoreError when the store cannot be
    reached."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store

    def find(self, name: str) -> Record:
        """Return the record of the name's writer."""
        entries, revision = self._store.list(_WRITERS + name)
        for entry in entries:
            if entry.key == _WRITERS + name:
                return Record(Writer.unpack(entry.value), entry.revision, revision)
        return Record(None, 0, revision)

    def names(self) -> list[str]:
        """Return all names that are published."""
        return [entry.key.removeprefix(_WRITERS) for entry in self._store.list(_WRITERS).items]

    def await_change(self, name: str, before: Record, timeout: float) -> Record | None:
        """Wait for another writer, for `timeout` seconds. Return None if there is none by then."""
        deadline = monotonic() + timeout
        with self._store.watch(_WRITERS + name, before.seen) as watch:
            while (left := deadline - monotonic()) > 0:
                try:
                    event = watch.next(min(left, _LONGEST_WATCH))
                except StoreTimeout:
                    continue
                if event.key == _WRITERS + name and event.kind == "put":
                    return Record(Writer.unpack(event.value), event.revision, event.revision)
        return None

    def claim(self, name: str, writer: Writer, has_ended: Callable[[Writer], bool]) -> None:
        """Become the writer of this name.

        Raises ConfigError if another worker is its writer, and has not ended.
        """
        while True:
            record = self.find(name)
            other = record.writer
            if other is not None and other.info.name != writer.info.name and not has_ended(other):
                raise ConfigError(
                    f"{name!r} is published by {other.info.name!r} on {other.host} already: choose "
                    f"another name, or let that worker end first"
                )
            seen = Compare(_WRITERS + name, record.since)
            if self._store.transact([seen], [Put(_WRITERS + name, writer.pack())]).succeeded:
                return

    def more_versions(self, name: str) -> int:
        """Return the first of VERSIONS numbers that nobody has used, higher than all used ones."""
        return (self._store.add(_COUNTS + name, 1) - 1) * VERSIONS + 1

    def withdraw(self, name: str, writer: Writer) -> None:
        """Remove this writer's record, unless another has become the writer."""
        record = self.find(name)
        if record.writer == writer:
            key = _WRITERS + name
            self._store.transact([Compare(key, record.since)], [Delete(key)])
