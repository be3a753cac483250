"""Feeds, from which a subscription gets versions: slots of a writer of this node, or calls to
another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Literal

from torsh_runtime.backends.future import around_waits
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.host_info import node_here
from torsh_runtime.checkpoint.manifest import Manifest
from torsh_runtime.checkpoint.pieces import Bytes
from torsh_runtime.errors import CommError, PeerLost
from torsh_runtime.layout import Piece
from torsh_runtime.rpc.failures import lost
from torsh_runtime.rpc.publishing import serving
from torsh_runtime.rpc.publishing.description import split
from torsh_runtime.rpc.publishing.peers import Peers
from torsh_runtime.rpc.publishing.registry import NotPublished, Writer
from torsh_runtime.rpc.publishing.versions import RemoteVersion, SlotVersion, Version

News = Literal["newer", "late", "closed", "lost"]
"""There is a later version; the time has passed; the writer publishes no more; it has ended."""
_LONGEST_CALL = 20.0
"""The largest number of seconds that one call asks a writer for news."""


class Feed(ABC):
    """Gives the versions of one writer. One thread may use it at a time."""

    def __init__(self, name: str, writer: Writer) -> None:
        self._name, self.writer = name, writer
        self._known: tuple[bytes, Manifest] | None = None

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Return whether further versions may come, as far as that is known without asking."""

    @abstractmethod
    def wait(self, version: int, seconds: float) -> News:
        """Wait for a later version than this one, for at most `seconds`."""

    @abstractmethod
    def hold(self, timeout: float) -> Version | None:
        """Return the newest version, or None if there is none yet. Raises PeerLost if it is not
        available any more."""

    def lost(self, op: str, news: News) -> PeerLost:
        """Return the error that reports the end of the writer."""
        detail = "its process has ended"
        if news == "closed":
            detail = f"it has stopped publishing {self._name!r}"
        return lost(self.writer.info, self.writer.host, op, detail)

    def _described(self, text: bytes) -> tuple[Manifest, Any]:
        """Return the manifest and the state of a version's text. Manifests seldom change, so the
        last one is kept."""
        told, tree = split(text)
        if self._known is None or self._known[0] != told:
            self._known = told, Manifest.from_bytes(told)
        return self._known[1], tree


class SlotFeed(Feed):
    """Gives the versions of a writer of this node."""

    def __init__(self, name: str, writer: Writer, worker: str) -> None:
        """Open the writer's memory. Raises OSError if that is impossible: the writer has ended, or
        the system forbids it."""
        super().__init__(name, writer)
        self._reader = _native.SlotReader(writer.pid, writer.file, writer.token, worker)

    @property
    def is_open(self) -> bool:
        """Return whether the writer's slots are open."""
        found: bool = self._reader.is_open
        return found

    def wait(self, version: int, seconds: float) -> News:
        """Wait for a change in the writer's slots."""
        with around_waits.by:
            found: News = self._reader.wait(version, seconds)
        return found

    def hold(self, timeout: float) -> Version | None:
        """Hold the newest version in the writer's slots. Raises CommError if the node's readers
        hold as many versions as they can, and PeerLost."""
        try:
            lease = self._reader.hold()
        except BlockingIOError:
            raise CommError(
                f"{self._name!r}: as many versions are held in this node as can be; have readers "
                f"close those that they do not need any more"
            ) from None
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            raise self.lost(f"latest({self._name!r})", "lost") from None
        if lease is None:
            return None
        return SlotVersion(self.writer.info.name, lease, *self._described(lease.text))


class CallFeed(Feed):
    """Gives the versions of a writer whose memory this process cannot open."""

    def __init__(self, name: str, writer: Writer, peers: Peers, number: int) -> None:
        """Create the feed. `number` is that of the subscription among those of this worker."""
        super().__init__(name, writer)
        self._peers, self._reader = peers, (peers.own.id, number)
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Return whether the last call found the writer publishing."""
        return self._is_open

    def wait(self, version: int, seconds: float) -> News:
        """Wait by calls to the writer, of at most 20 seconds each."""
        deadline = monotonic() + seconds
        while (left := deadline - monotonic()) > 0:
            try:
                is_newer = self._call(
                    serving.await_newer, self._reader, version, timeout=min(left, _LONGEST_CALL)
                )
            except PeerLost:
                return "lost"
            except TimeoutError:
                continue
            if is_newer:
                return "newer"
            self._is_open = False
            return "closed"
        return "late"

    def hold(self, timeout: float) -> Version | None:
        """Hold the newest version by a call to the writer, in which `timeout` seconds may pass."""
        found = self._call(serving.pin, self._peers.own, timeout=timeout)
        if found is None:
            return None
        pin, number, text = found
        release = partial(self._peers.notify, self.writer.info, serving.unpin, self._name, pin)
        fetch = partial(self._fetch, pin, timeout)
        return RemoteVersion(self.writer.info.name, number, *self._described(text), fetch, release)

    def _fetch(self, pin: int, timeout: float, wanted: Sequence[tuple[str, Piece]]) -> list[Bytes]:
        found: list[Bytes] = self._call(serving.fetch, pin, wanted, timeout=timeout)
        return found

    def _call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        info = self.writer.info
        try:
            found = self._peers.call(info, function, self._name, *args, timeout=timeout)
        except NotPublished:  # it is another process, which has taken the worker's place
            self._is_open = False
            raise self.lost(f"{function.__name__}({self._name!r})", "closed") from None
        except PeerLost:
            self._is_open = False
            raise
        self._is_open = True
        return found


def feed_of(name: str, writer: Writer, peers: Peers, number: int) -> Feed | None:
    """Return the feed of this writer's versions. None if it is a process of this node that has
    ended."""
    if writer.node == node_here():
        try:
            return SlotFeed(name, writer, peers.own.name)
        except PermissionError:  # the system keeps processes of one user apart (/proc)
            return CallFeed(name, writer, peers, number)
        except OSError:
            return None
    return CallFeed(name, writer, peers, number)
