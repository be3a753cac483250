"""Provides the queues of the store for programs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.arguments import Value, as_bytes
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.queue import StoreQueue

_QUEUES = "queues/"


class Queues(ABC):
    """Provides queues of values; see Store."""

    _seconds: float

    @abstractmethod
    def _beside(self, kind: str, key: str) -> StoreClient: ...

    def queue_push(self, key: str, value: Value) -> None:
        """Append a value to a queue. Queues have names of their own, which are not keys.

        Args:
            key: The queue's name.
            value: Bytes, or a string.

        Example:
            ```python
            tr.get_store().queue_push("files", "part-0001.bin")
            ```
        """
        self._queue(key).push(as_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value out of a queue; each value is returned to one caller only.

        Args:
            key: The queue's name.
            block: Whether to wait for a value, for at most the store's timeout.

        Raises:
            StoreTimeout: If there is none.

        Example:
            ```python
            file = tr.get_store().queue_pop("files").decode()
            ```
        """
        queue = self._queue(key)
        value = queue.pop(self._seconds) if block else queue.take()
        if value is None:
            raise StoreTimeout(f"the queue {key!r} is empty")
        return value

    def queue_len(self, key: str) -> int:
        """Return the number of values in the queue `key`.

        Example:
            ```python
            tr.get_store().queue_len("files")
            ```
        """
        return len(self._queue(key))

    def _queue(self, key: str) -> StoreQueue:
        return StoreQueue(self._beside(_QUEUES, key))
