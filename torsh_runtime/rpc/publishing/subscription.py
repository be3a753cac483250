"""Provides a reader's end: the versions that are published under a name, by any writer."""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic

from torsh_runtime.errors import CommTimeout, PeerLost, StoreError
from torsh_runtime.rpc.publishing.feeds import CallFeed, Feed, News, feed_of
from torsh_runtime.rpc.publishing.peers import Peers
from torsh_runtime.rpc.publishing.registry import Record, Registry
from torsh_runtime.rpc.publishing.versions import Version
from torsh_runtime.rpc.publishing.weights import Weights


class Subscription:
    """Represents the result of tr.rpc.subscribe().

    It costs the writer nothing until a version is held, and nothing has to be closed.

    Example:
        ```python
        policy = tr.rpc.subscribe("policy")
        with policy.latest() as weights:
            weights.copy_to(model)
        ```
    """

    def __init__(self, name: str, peers: Peers, number: int) -> None:
        """Create the subscription; use tr.rpc.subscribe().

        Args:
            name: The name that is subscribed to.
            peers: The workers.
            number: The subscription's number among those of this worker.
        """
        self._name, self._peers, self._number = name, peers, number
        self._registry = Registry(peers.store)
        self._lock = threading.Lock()
        self._feed: Feed | None = None
        self._record = Record(None, 0, 0)
        self._told = 0
        """The writer whose end was reported, by the revision at which it became the writer."""
        self._version = 0

    @property
    def name(self) -> str:
        """Return the name that is subscribed to."""
        return self._name

    @property
    def version(self) -> int:
        """Return the number of the newest version that this subscription has returned, or 0 if
        there is none."""
        return self._version

    def latest(self, timeout: float | None = None) -> Weights:
        """Return the newest version that there is now. Wait for the first one.

        The last version of a writer that has ended is still available within its node, to
        subscriptions that have had it already.

        Args:
            timeout: Seconds, 0 for no limit; None is that of calls.

        Raises:
            CommTimeout: If nothing is published in time.
            PeerLost: If the writer has ended and its last version is lost; it names the writer.

        Example:
            ```python
            with policy.latest() as weights:
                weights.copy_to(model)
            ```
        """
        return self._get(0, f"latest({self._name!r})", timeout)

    def wait(self, version: int | None = None, timeout: float | None = None) -> Weights:
        """Wait for a later version than `version`, and return the newest.

        Args:
            version: The number of a version; None is the last that this subscription has returned.
            timeout: Seconds, 0 for no limit; None is that of calls.

        Raises:
            PeerLost: As soon as the writer has ended or publishes no more; it names the writer.
                Call it again to wait for another writer of the same name, whose versions have
                higher numbers.
            CommTimeout: If there is none in time.

        Example:
            ```python
            while True:
                with policy.wait(timeout=0) as weights:
                    weights.copy_to(model)
            ```
        """
        after = self._version if version is None else version
        return self._get(after, f"wait({self._name!r})", timeout)

    def _get(self, after: int, op: str, timeout: float | None) -> Weights:
        seconds = self._peers.seconds(timeout)
        deadline = monotonic() + seconds
        if not self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise CommTimeout(op, 0, seconds, (), ": another thread waits on this subscription")
        try:
            while True:
                feed = self._follow(op, seconds, deadline)
                version, news = self._next(feed, after, deadline)
                if version is not None:
                    self._version = max(self._version, version.number)
                    return Weights(version)
                if news == "late":
                    raise self._late(after, op, seconds, feed)
                self._await_another(feed, news, op, deadline)
        finally:
            self._lock.release()

    def _next(self, feed: Feed, after: int, deadline: float) -> tuple[Version | None, News]:
        """Return a later version of this writer, or what became of it."""
        try:
            version = None if after else feed.hold(max(deadline - monotonic(), 1.0))
            news: News = "newer"
            while version is None and news == "newer":
                news = feed.wait(after, max(deadline - monotonic(), 0.0))
                if news == "newer":
                    version = feed.hold(max(deadline - monotonic(), 1.0))
        except PeerLost:
            return None, "lost"
        return version, news

    def _follow(self, op: str, seconds: float, deadline: float) -> Feed:
        """Return the feed of the present writer. Its end is not noticed here, except where another
        has taken its place."""
        if self._feed is not None and self._feed.is_open:
            return self._feed
        record = self._found()
        if self._feed is not None and record.since in (0, self._record.since):
            return self._feed
        while True:
            feed = None
            if record.writer is not None:
                feed = feed_of(self._name, record.writer, self._peers, self._number)
            if feed is not None:
                self._feed, self._record = feed, record
                return feed
            found = self._registry.await_change(self._name, record, deadline - monotonic())
            if found is None:
                raise self._nobody(record, op, seconds)
            record = found

    def _await_another(self, feed: Feed, news: News, op: str, deadline: float) -> None:
        """Wait for another writer, if this one's end has been reported already. Raises PeerLost if
        it has not, or none appears."""
        error = feed.lost(op, news)
        record = self._found()
        if record.since not in (0, self._record.since):
            return
        if self._told != self._record.since:
            self._told = self._record.since
            raise error
        found = None
        with suppress(StoreError):
            found = self._registry.await_change(self._name, record, deadline - monotonic())
        if found is None:
            raise error

    def _found(self) -> Record:
        """Return the record of the writer. The store may have ended with the writer that served it:
        then this is the known record, and StoreError if there is none."""
        try:
            return self._registry.find(self._name)
        except StoreError:
            if self._feed is None:
                raise
            return self._record

    def _late(self, after: int, op: str, seconds: float, feed: Feed) -> CommTimeout:
        newer = f"nothing newer than version {after}" if after else "nothing"
        who = f"worker {feed.writer.info.name!r} on {feed.writer.host}"
        return CommTimeout(op, 0, seconds, (), f": {who} has published {newer} in this time")

    def _nobody(self, record: Record, op: str, seconds: float) -> CommTimeout | PeerLost:
        if record.writer is not None:
            return CallFeed(self._name, record.writer, self._peers, 0).lost(op, "lost")
        names = ", ".join(map(repr, self._registry.names())) or "nothing"
        return CommTimeout(op, 0, seconds, (), f": nobody publishes it; there is {names}")
