"""Iterates over the changes of keys, for programs."""

from __future__ import annotations

from collections import deque
from typing import Self

from torsh_runtime.closing import Closing
from torsh_runtime.store.arguments import Timeout, in_seconds
from torsh_runtime.store.base import Event
from torsh_runtime.store.client import StoreClient


class StoreWatch(Closing):
    """Iterates over the changes of some keys of a store, for one thread at a time.

    Store.watch() creates it. Each change has kind ("put" or "delete"), key, value (bytes) and
    revision.

    Raises:
        StoreTimeout: While iterating, if no change comes for the timeout. It can then continue.
        StoreError: If the store is gone.

    Example:
        ```python
        with tr.get_store().watch("jobs/") as changes:
            first = changes.next(timeout=10)
            print(first.key, first.value)
        ```
    """

    def __init__(self, client: StoreClient, prefix: str, timeout: float) -> None:
        """Start to watch; use Store.watch().

        Args:
            client: The connection.
            prefix: The beginning of the keys.
            timeout: Seconds after which next() raises StoreTimeout.
        """
        listing = client.list(prefix)
        self._timeout = timeout
        self._present = deque(
            Event("put", entry.key, entry.value, entry.revision) for entry in listing.items
        )
        self._changes = client.watch(prefix, listing.revision, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return self.next()

    def next(self, timeout: Timeout = None) -> Event:
        """Return the next change.

        Args:
            timeout: Seconds or a timedelta; None is that of watch().

        Raises:
            StoreTimeout: If none comes in time; call it again.

        Example:
            ```python
            with tr.get_store().watch("jobs/") as changes:
                change = changes.next(timeout=10)
            ```
        """
        if self._present:
            return self._present.popleft()
        return self._changes.next(in_seconds(timeout, self._timeout))

    def close(self) -> None:
        """End the watch and close its connection."""
        self._changes.close()
