"""Everything that this worker publishes, and its answers to readers of other nodes."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from functools import partial
from typing import Any

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.host_info import node_here
from torsh_runtime.errors import ConfigError, PeerLost, StoreError
from torsh_runtime.rpc.options import WorkerInfo
from torsh_runtime.rpc.publishing import serving
from torsh_runtime.rpc.publishing.peers import Peers
from torsh_runtime.rpc.publishing.publication import Publication
from torsh_runtime.rpc.publishing.registry import NotPublished, Registry, Writer
from torsh_runtime.rpc.publishing.subscription import Subscription

_PING_SECONDS = 5.0
"""Seconds for which another writer of a name may not answer and still counts as alive."""


class Publications:
    """Holds the publications of a worker. Any thread may use it."""

    def __init__(self, peers: Peers) -> None:
        self._peers, self._registry = peers, Registry(peers.store)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Publication, Writer]] = {}
        self._numbers = itertools.count(1)

    def publish(self, name: str, state: Any, timeout: Any) -> int:
        """Carry out tr.rpc.publish()."""
        return self._publication(name).publish(state, self._peers.seconds(timeout))

    def find(self, name: str) -> Publication:
        """Return the publication of this name. Raises NotPublished if this worker does not publish
        it."""
        with self._lock:
            found = self._known.get(name)
        if found is None:
            raise NotPublished(f"{self._peers.own.name!r} does not publish {name!r}")
        return found[0]

    def pin(self, name: str, reader: WorkerInfo) -> tuple[int, int, bytes] | None:
        """Hold the newest version for a reader, as Publication.pin() does."""
        publication = self.find(name)
        pinned = publication.pin(reader)
        if not self._peers.is_connected(reader):  # forget() was called before the pin
            publication.forget(reader.id)
        return pinned

    def forget(self, worker: int) -> None:
        """Release all versions held for a worker that has ended."""
        with self._lock:
            known = list(self._known.values())
        for publication, _ in known:
            publication.forget(worker)

    def subscribe(self, name: str) -> Subscription:
        """Carry out tr.rpc.subscribe()."""
        check_name(name)
        return Subscription(name, self._peers, next(self._numbers))

    def close(self) -> None:
        """Publish no more. Readers that wait for a version are notified."""
        with self._lock:
            known, self._known = self._known, {}
        for name, (publication, writer) in known.items():
            with suppress(StoreError):  # the worker that served the store has left
                self._registry.withdraw(name, writer)
            publication.close()

    def _publication(self, name: str) -> Publication:
        check_name(name)
        with self._lock:
            if name not in self._known:
                self._known[name] = self._new(name)
            return self._known[name][0]

    def _new(self, name: str) -> tuple[Publication, Writer]:
        publication = Publication(name, partial(self._registry.more_versions, name))
        peers = self._peers
        writer = Writer.here(peers.own, peers.host, publication.file, publication.token)
        try:
            self._registry.claim(name, writer, partial(self._has_ended, name))
        except BaseException:
            publication.close()
            raise
        return publication, writer

    def _has_ended(self, name: str, writer: Writer) -> bool:
        """Return whether another writer publishes no more."""
        if writer.node == node_here():
            return not _is_open(writer)
        try:
            self._peers.call(writer.info, serving.find, name, timeout=_PING_SECONDS)
        except (PeerLost, NotPublished):
            return True
        except TimeoutError:
            return False
        return False


def check_name(name: object) -> None:
    """Raise ConfigError unless `name` can be the name of a publication."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"what is published needs a name, and {name!r} is none")


def _is_open(writer: Writer) -> bool:
    """Return whether a writer of this node has not ended."""
    try:
        found: bool = _native.SlotReader(writer.pid, writer.file, writer.token, "").is_open
    except PermissionError:  # the process exists
        return True
    except OSError:
        return False
    return found
