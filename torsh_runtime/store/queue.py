"""A queue in a store, which any number of clients fill and empty."""

from __future__ import annotations

import time
from contextlib import suppress

from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.base import Compare, Delete, Entry, Put, Write
from torsh_runtime.store.client import StoreClient


class StoreQueue:
    """Values in the order in which they were put in; each comes out once.

    Its rows are "tail" and "head", how many values were put in and taken out, and "item/<number>".
    Values go in and out together with these, so nobody who ends in between leaves a gap.
    """

    def __init__(self, scope: StoreClient) -> None:
        """`scope`: scoped to what is this queue's alone."""
        self._scope = scope

    def push(self, value: bytes) -> None:
        """Put a value in at the end."""
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
        """Take the first value out; waits for one. StoreTimeout after so many seconds."""
        deadline = time.monotonic() + timeout
        while (value := self.take()) is None:
            self._wait_for_push(deadline)
        return value

    def take(self) -> bytes | None:
        """Take the first value out; None if there is none."""
        while True:
            head = self._scope.get("head")
            number = _count(head)
            item = self._scope.get(f"item/{number}")
            if item is not None:
                writes: list[Write] = [Put("head", str(number + 1).encode()), Delete(item.key)]
                if self._scope.transact([_unchanged("head", head)], writes).succeeded:
                    return item.value
            elif self._scope.get("head") == head:
                return None  # and not because somebody else has just taken it

    def __len__(self) -> int:
        """Number of values in it."""
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
