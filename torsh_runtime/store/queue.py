"""Queues in a store, which any number of clients fill and empty."""

from __future__ import annotations

import time
from contextlib import suppress

from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.base import Compare, Delete, Entry, Put, Write
from torsh_runtime.store.client import StoreClient


class StoreQueue:
    """Keeps values in the order in which they were put in; each is taken out once.

    Its keys are "tail" and "head", the numbers of values put in and taken out, and
    "item/<number>". A value and its counter change in one transaction, so a client that ends at any
    moment leaves no gap.
    """

    def __init__(self, scope: StoreClient) -> None:
        """Open the queue in `scope`, a part of the store that only this queue uses."""
        self._scope = scope

    def push(self, value: bytes) -> None:
        """Append a value to the queue."""
        while True:
            tail = self._scope.get("tail")
            number = _count(tail)
            writes: list[Write] = [
                Put("tail", str(number + 1).encode()),
                Put(f"item/{number}", value),
            ]
            if self._scope.transact([_unchanged("tail", tail)], writes).succeeded:
                return

    def pop(self, timeout: float) -> bytes:
        """Wait for a value and take out the first. Raises StoreTimeout after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (value := self.take()) is None:
            self._wait_for_push(deadline)
        return value

    def take(self) -> bytes | None:
        """Take out the first value and return it, or None if the queue is empty."""
        while True:
            head = self._scope.get("head")
            number = _count(head)
            item = self._scope.get(f"item/{number}")
            if item is not None:
                writes: list[Write] = [Put("head", str(number + 1).encode()), Delete(item.key)]
                if self._scope.transact([_unchanged("head", head)], writes).succeeded:
                    return item.value
            elif self._scope.get("head") == head:
                return None  # empty: no other client has just taken an item

    def __len__(self) -> int:
        """Return the number of values in the queue."""
        taken = _count(self._scope.get("head"))
        return max(_count(self._scope.get("tail")) - taken, 0)

    def _wait_for_push(self, deadline: float) -> None:
        revision = self._scope.list("tail").revision
        if len(self):
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise StoreTimeout("nothing came into the queue in time")
        with self._scope.watch("tail", revision, left) as pushes, suppress(StoreTimeout):
            pushes.next(left)


def _count(entry: Entry | None) -> int:
    return int(entry.value) if entry else 0


def _unchanged(key: str, entry: Entry | None) -> Compare:
    return Compare(key, entry.revision if entry else 0)
