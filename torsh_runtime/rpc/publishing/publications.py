"""All that this worker publishes, and what it answers to readers of other nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.place import node_here
from torsh_runtime.errors import ConfigError, PeerLost
from torsh_runtime.rpc.publishing.peers import Peers
from torsh_runtime.rpc.publishing.publication import Publication
from torsh_runtime.rpc.publishing.registry import Registry, Writer

_PING_SECONDS = 5.0
"""For how long another writer of a name may not answer and still counts as alive."""


class Publications:
    """One for a worker. Any thread."""

    def __init__(self, peers: Peers) -> None:
        self._peers, self._registry = peers, Registry(peers.store)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Publication, Writer]] = {}

    @property
    def served(self) -> Mapping[str, Callable[..., Any]]:
        """Functions that readers call, by the names that they call them by."""
        return {
            "torsh.publishing.ping": self._ping,
            "torsh.publishing.pin": lambda name, worker: self._find(name).pin(worker),
            "torsh.publishing.unpin": lambda name, pin: self._find(name).unpin(pin),
            "torsh.publishing.fetch": lambda name, pin, pieces: self._find(name).fetch(pin, pieces),
            "torsh.publishing.await_newer": self._await_newer,
        }

    def publish(self, name: str, state: Any, timeout: float) -> int:
        """See tr.rpc.publish()."""
        return self._publication(name).publish(state, timeout)

    def forget(self, worker: str) -> None:
        """The worker has ended: no version is held for it any more."""
        with self._lock:
            known = list(self._known.values())
        for publication, _ in known:
            publication.forget(worker)

    def close(self) -> None:
        """Publish no more. Readers that wait for a version learn it."""
        with self._lock:
            known, self._known = self._known, {}
        for name, (publication, writer) in known.items():
            self._registry.withdraw(name, writer)
            publication.close()

    def _publication(self, name: str) -> Publication:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"what is published needs a name, and {name!r} is none")
        with self._lock:
            if name not in self._known:
                self._known[name] = self._new(name)
            return self._known[name][0]

    def _new(self, name: str) -> tuple[Publication, Writer]:
        publication = Publication(name, lambda: self._registry.more_versions(name))
        peers = self._peers
        writer = Writer.here(
            peers.worker, peers.rank, peers.host, publication.file, publication.token
        )
        self._registry.claim(name, writer, self._has_ended)
        return publication, writer

    def _find(self, name: str) -> Publication:
        with self._lock:
            found = self._known.get(name)
        if found is None:
            raise ConfigError(f"{self._peers.worker!r} does not publish {name!r}")
        return found[0]

    def _ping(self) -> None:
        """Answering is all."""

    def _await_newer(self, name: str, reader: tuple[str, int], version: int) -> Any:
        return self._find(name).await_newer((reader[0], reader[1]), version)

    def _has_ended(self, writer: Writer) -> bool:
        """Whether another writer publishes no more."""
        if writer.node == node_here():
            return not _is_open(writer)
        try:
            self._peers.call(writer.worker, "torsh.publishing.ping", timeout=_PING_SECONDS)
        except PeerLost:
            return True
        except TimeoutError:
            return False
        return False


def _is_open(writer: Writer) -> bool:
    """Whether a writer of this node has not ended."""
    try:
        found: bool = _native.SlotReader(writer.pid, writer.file, writer.token, "").is_open
    except PermissionError:  # of a process that is there
        return True
    except OSError:
        return False
    return found
