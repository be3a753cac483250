"""Where a subscription gets versions from: slots of a writer of this node, or calls to another."""

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
"""Seconds for which a writer is asked for news at a time."""


class Feed(ABC):
    """Versions of one writer. One thread at a time."""

    def __init__(self, name: str, writer: Writer) -> None:
        self._name, self.writer = name, writer
        self._known: tuple[bytes, Manifest] | None = None

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether further versions may come, as far as that is known without asking."""

    @abstractmethod
    def wait(self, version: int, seconds: float) -> News:
        """Wait for a later version than this one."""

    @abstractmethod
    def hold(self, timeout: float) -> Version | None:
        """The newest version; None if there is none yet. PeerLost if it cannot be had any more."""

    def lost(self, op: str, news: News) -> PeerLost:
        """The error that says so."""
        detail = "its process has ended"
        if news == "closed":
            detail = f"it has stopped publishing {self._name!r}"
        return lost(self.writer.info, self.writer.host, op, detail)

    def _described(self, text: bytes) -> tuple[Manifest, Any]:
        """What a version says of itself. Manifests seldom change."""
        told, tree = split(text)
        if self._known is None or self._known[0] != told:
            self._known = told, Manifest.from_bytes(told)
        return self._known[1], tree


class SlotFeed(Feed):
    """Of a writer of this node."""

    def __init__(self, name: str, writer: Writer, worker: str) -> None:
        """OSError if its memory cannot be opened: it has ended, or the system forbids it."""
        super().__init__(name, writer)
        self._reader = _native.SlotReader(writer.pid, writer.file, writer.token, worker)

    @property
    def is_open(self) -> bool:
        """See Feed."""
        found: bool = self._reader.is_open
        return found

    def wait(self, version: int, seconds: float) -> News:
        """See Feed."""
        with around_waits.by:
            found: News = self._reader.wait(version, seconds)
        return found

    def hold(self, timeout: float) -> Version | None:
        """See Feed."""
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
    """Of a writer whose memory is not to be had here."""

    def __init__(self, name: str, writer: Writer, peers: Peers, number: int) -> None:
        """number: of the subscription among those of this worker."""
        super().__init__(name, writer)
        self._peers, self._reader = peers, (peers.own.id, number)
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """See Feed."""
        return self._is_open

    def wait(self, version: int, seconds: float) -> News:
        """See Feed."""
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
        """See Feed."""
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
    """Where to get this writer's versions from. None if it is a process of this node that has
    ended."""
    if writer.node == node_here():
        try:
            return SlotFeed(name, writer, peers.own.name)
        except PermissionError:  # the system keeps processes of one user apart (/proc)
            return CallFeed(name, writer, peers, number)
        except OSError:
            return None
    return CallFeed(name, writer, peers, number)
