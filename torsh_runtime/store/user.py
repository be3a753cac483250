"""The job's store for programs, with the names of torch.distributed.Store."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from operator import index
from typing import Self

from torsh_runtime.closing import Closing
from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.barrier import StoreBarrier
from torsh_runtime.store.base import Compare, Entry, Event, Put
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.queue import StoreQueue

Timeout = float | timedelta | None
Value = str | bytes

_KEYS, _BARRIERS, _QUEUES = "keys/", "barriers/", "queues/"


class Store:
    """Holds keys and values that all ranks of the job share; any number of threads may use it.

    Keys are non-empty strings; values are bytes of a little less than 64 MiB, and strings, which
    count as UTF-8. get_store() returns the job's: nothing that is done here reaches what the
    library keeps there for itself.

    Raises:
        StoreError: From every call, if the store is gone or refuses it, such as for an empty key.
        StoreTimeout: From every call, if the store does not answer.
        TypeError: For keys and values of other types.
        ValueError: For timeouts that are no number of seconds from 0.

    Example:
        ```python
        store = tr.get_store()
        if tr.get_rank() == 0:
            store.set("run", "42")
        store.get("run")  # b"42", on all ranks
        ```
    """

    def __init__(self, client: StoreClient, timeout: Timeout, prefix: str = "") -> None:
        """Create a store.

        Args:
            client: The connection, scoped to what is this store's alone.
            timeout: Seconds or a timedelta that get() and wait() take unless they are given a
                timeout.
            prefix: The prefix of all keys.
        """
        self._client = client
        self._prefix = prefix
        self._seconds = _in_seconds(timeout, 0.0)

    @property
    def timeout(self) -> timedelta:
        """Return how long get() and wait() wait at most."""
        return timedelta(seconds=self._seconds)

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set how long get() and wait() of this object wait.

        Args:
            timeout: Seconds or a timedelta, from 0 on.

        Raises:
            ValueError: If it is no such number.

        Example:
            ```python
            store = tr.get_store()
            store.set_timeout(30)  # seconds
            ```
        """
        self._seconds = _in_seconds(timeout, self._seconds)

    def prefix(self, prefix: str) -> Store:
        """Return this store with `prefix` and a slash before every key.

        Example:
            ```python
            jobs = tr.get_store().prefix("jobs")
            jobs.set("42", "ready")  # the key jobs/42
            ```
        """
        return Store(self._client, self._seconds, f"{self._prefix}{prefix}/")

    def clone(self) -> Store:
        """Return the same store with a timeout of its own.

        Example:
            ```python
            patient = tr.get_store().clone()
            patient.set_timeout(3600)
            ```
        """
        return Store(self._client, self._seconds, self._prefix)

    def has_extended_api(self) -> bool:
        """Return True: the store has append, multi_get and multi_set."""
        return True

    def set(self, key: str, value: Value) -> None:
        """Write a key.

        Args:
            key: The key.
            value: Bytes, or a string, which counts as UTF-8.

        Example:
            ```python
            tr.get_store().set("state", "ready")
            ```
        """
        self._client.put(self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the key's value; wait until it exists.

        Raises:
            StoreTimeout: If it does not exist within the store's timeout.

        Example:
            ```python
            tr.get_store().get("state")  # b"ready", once a rank has set it
            ```
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of all these keys, in order; wait until all exist.

        Raises:
            StoreTimeout: If some do not exist within the store's timeout; it names them.

        Example:
            ```python
            first, second = tr.get_store().multi_get(["first", "second"])
            ```
        """
        found = self._wait(keys, None)
        return [found[self._key(key)].value for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Write all these keys as one change: nobody sees some of them without the others.

        Args:
            keys: The keys.
            values: A value for each key.

        Raises:
            ValueError: If there are not as many values as keys.

        Example:
            ```python
            tr.get_store().multi_set(["first", "second"], ["1", "2"])
            ```
        """
        _check_list(keys)
        pairs = zip(map(self._key, keys), map(_bytes, values), strict=True)
        self._client.transact((), [Put(key, value) for key, value in pairs])

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value.

        Args:
            key: The counter, whose value is decimal text; an absent one is 0.
            amount: An integer.

        Raises:
            StoreError: If the key's value is no decimal number, or if the result leaves 64 bits.

        Example:
            ```python
            number = tr.get_store().add("arrived", 1)  # 1 for the first rank
            ```
        """
        return self._client.add(self._key(key), index(amount))

    def append(self, key: str, value: Value) -> None:
        """Append to a key's value.

        Args:
            key: The key; an absent one has an empty value.
            value: Bytes, or a string.

        Raises:
            StoreTimeout: If others change the key all along, for the store's timeout.

        Example:
            ```python
            tr.get_store().append("arrived", f"{tr.get_rank()} ")
            ```
        """
        addition = _bytes(value)
        self._change(key, lambda entry: (entry.value if entry else b"") + addition)

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Write a key if it has the expected value, or is absent and that is empty.

        Args:
            key: The key.
            expected_value: The value that it must have.
            desired_value: The value to write.

        Returns:
            The key's value afterwards; `expected_value` if it is still absent.

        Raises:
            StoreTimeout: If others change the key all along, for the store's timeout.

        Example:
            ```python
            own = str(tr.get_rank()).encode()
            is_leader = tr.get_store().compare_set("leader", b"", own) == own
            ```
        """
        expected, desired = _bytes(expected_value), _bytes(desired_value)

        def change(entry: Entry | None) -> bytes | None:
            return desired if (entry.value if entry else b"") == expected else None

        entry = self._change(key, change)
        return entry.value if entry else expected

    def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Wait until all these keys exist.

        Args:
            keys: The keys.
            timeout: Seconds or a timedelta; None is the store's timeout.

        Raises:
            StoreTimeout: If some do not exist in time; it names them.

        Example:
            ```python
            tr.get_store().wait(["first", "second"], timeout=60)
            ```
        """
        self._wait(keys, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all these keys exist now.

        Example:
            ```python
            if tr.get_store().check(["stop"]):
                raise SystemExit
            ```
        """
        _check_list(keys)
        return all(self._client.get(self._key(key)) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        """Delete the key, and return whether it existed.

        Example:
            ```python
            tr.get_store().delete_key("state")  # True if it existed
            ```
        """
        return self._client.delete(self._key(key))

    def list_keys(self) -> list[str]:
        """Return all keys, in order.

        Example:
            ```python
            for key in tr.get_store().list_keys():
                print(key)
            ```
        """
        listing = self._client.list(_KEYS + self._prefix)
        return [entry.key.removeprefix(_KEYS + self._prefix) for entry in listing.items]

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self.list_keys())

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
        self._queue(key).push(_bytes(value))

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

    def barrier(self, key: str, world_size: int, timeout: Timeout = None) -> None:
        """Wait until `world_size` callers have called it with this key; it can be used again and
        again.

        Args:
            key: The barrier's name, which is not one of the keys.
            world_size: The number of callers.
            timeout: Seconds or a timedelta; None is the store's timeout.

        Raises:
            StoreTimeout: If they do not come. It is then as if this one had not called it.
            ValueError: If `world_size` is below 1.

        Example:
            ```python
            tr.get_store().barrier("epoch", tr.get_world_size(), timeout=600)
            ```
        """
        seconds = _in_seconds(timeout, self._seconds)
        StoreBarrier(self._beside(_BARRIERS, key), world_size).pass_it(seconds)

    def watch(self, prefix: str = "", timeout: Timeout = None) -> StoreWatch:
        """Return an iterator over the changes of the keys that begin with `prefix`.

        Each existing key comes first, as a put, and then every change, in order and without gaps.
        Use it in `with`, because it holds a connection.

        Args:
            prefix: The beginning of the keys.
            timeout: Seconds or a timedelta after which iterating raises StoreTimeout if nothing
                comes, and can then continue; None is the store's timeout.

        Example:
            ```python
            with tr.get_store().watch("jobs/") as changes:
                for change in changes:
                    print(change.kind, change.key, change.value)
            ```
        """
        seconds = _in_seconds(timeout, self._seconds)
        return StoreWatch(self._client.scoped(_KEYS + self._prefix), prefix, seconds)

    def _wait(self, keys: Sequence[str], timeout: Timeout) -> Mapping[str, Entry]:
        _check_list(keys)
        seconds = _in_seconds(timeout, self._seconds)
        return self._client.wait([self._key(key) for key in keys], seconds) if keys else {}

    def _change(self, key: str, change: Callable[[Entry | None], bytes | None]) -> Entry | None:
        """Write the value that `change` returns for the key's entry, unless it is None.

        Returns the entry of the key afterwards. Raises StoreTimeout if others have changed the key
        at each attempt until the timeout.
        """
        name, deadline = self._key(key), time.monotonic() + self._seconds
        while True:
            entry = self._client.get(name)
            value = change(entry)
            if value is None:
                return entry
            compare = Compare(name, entry.revision if entry else 0)
            outcome = self._client.transact([compare], [Put(name, value)])
            if outcome.succeeded:
                return Entry(name, value, outcome.revision, 0)
            if time.monotonic() > deadline:
                raise StoreTimeout(f"others have changed {key!r} for {self._seconds:g} s all along")

    def apart(self, name: str) -> tuple[StoreClient, str]:
        """Return a part of the store that contains no keys of programs, and this store's prefix.

        It is for the library's own use.
        """
        return self._client.scoped(f"{name}/{self._prefix}"), self._prefix

    def _queue(self, key: str) -> StoreQueue:
        return StoreQueue(self._beside(_QUEUES, key))

    def _beside(self, kind: str, key: str) -> StoreClient:
        """Return a part of the store for the barrier or queue `key`, apart from all values."""
        name = self._key(key)
        return self._client.scoped(f"{kind}{len(name)}:{name}/")

    def _key(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"a key must be a string, not {key!r}")
        if not key:
            raise StoreError("a key must be a non-empty string")
        return f"{_KEYS}{self._prefix}{key}"


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
        return self._changes.next(_in_seconds(timeout, self._timeout))

    def close(self) -> None:
        """End the watch and close its connection."""
        self._changes.close()


class PrefixStore(Store):
    """Wraps a store so that every key has a prefix and a slash before it.

    Example:
        ```python
        jobs = tr.PrefixStore("jobs", tr.get_store())
        jobs.set("42", "ready")  # the key jobs/42
        ```
    """

    def __init__(self, prefix: str, store: Store) -> None:
        """Wrap a store.

        Args:
            prefix: What is before every key, with a slash.
            store: The store.
        """
        inner = store.prefix(prefix)
        super().__init__(inner._client, inner._seconds, inner._prefix)


def _check_list(keys: Sequence[str]) -> None:
    if isinstance(keys, str):
        raise TypeError(f"keys is the string {keys!r}; it must be a list of keys")


def _bytes(value: Value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a value must be bytes or a string, not {type(value).__name__}")
    return bytes(value)


def _in_seconds(timeout: Timeout, default: float) -> float:
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, str) or not seconds >= 0:
        raise ValueError(
            f"a timeout is a number of seconds from 0, or a timedelta, not {timeout!r}"
        )
    return float(seconds)
