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

    Keys are non-empty strings. Values are bytes of a little less than 64 MiB, or strings, which are
    encoded as UTF-8. get_store() returns the job's store, in which programs cannot reach the
    library's own keys:

        store = get_store()
        store.set("path", "/data")  # on one rank; store.get("path") waits for it on the others

    Every call raises StoreError when the store has gone or refuses, and StoreTimeout when it does
    not answer; TypeError for keys and values of other types, and ValueError for invalid timeouts.
    """

    def __init__(self, client: StoreClient, timeout: Timeout, prefix: str = "") -> None:
        """Open the store in `client`, a scoped client that only this store uses.

        `timeout`, in seconds or as a timedelta, is the default of all calls that wait. `prefix` is
        added before all keys.
        """
        self._client = client
        self._prefix = prefix
        self._seconds = _in_seconds(timeout, 0.0)

    @property
    def timeout(self) -> timedelta:
        """Return how long calls wait by default, as a timedelta."""
        return timedelta(seconds=self._seconds)

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set how long calls of this object wait by default, in seconds or as a timedelta.

        Raises ValueError unless it is at least 0.
        """
        self._seconds = _in_seconds(timeout, self._seconds)

    def prefix(self, prefix: str) -> Store:
        """Return a view of the store that adds `prefix` and a slash before every key."""
        return Store(self._client, self._seconds, f"{self._prefix}{prefix}/")

    def clone(self) -> Store:
        """Return a view of the store with a timeout of its own, at first this one's."""
        return Store(self._client, self._seconds, self._prefix)

    def has_extended_api(self) -> bool:
        """Return True, as the store has append, multi_get and multi_set."""
        return True

    def set(self, key: str, value: Value) -> None:
        """Write the key, replacing the value that it may have."""
        self._client.put(self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """Wait until the key exists and return its value as bytes.

        Raises StoreTimeout if it does not exist within the store's timeout.
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait until all these keys exist and return their values as bytes, in the order of `keys`.

        Raises StoreTimeout, which names the missing keys, after the store's timeout.
        """
        found = self._wait(keys, None)
        return [found[self._key(key)].value for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Write all these keys as one change: no reader sees some of them without the others.

        Raises ValueError unless there are as many values as keys.
        """
        _check_list(keys)
        pairs = zip(map(self._key, keys), map(_bytes, values), strict=True)
        self._client.transact((), [Put(key, value) for key, value in pairs])

    def add(self, key: str, amount: int) -> int:
        """Add to a counter atomically and return its new value.

        The counter is kept as decimal text; an absent key counts as 0. Raises StoreError when the
        value is no number, or the sum does not fit into 64 bits.
        """
        return self._client.add(self._key(key), index(amount))

    def append(self, key: str, value: Value) -> None:
        """Append the value to the key's value atomically; an absent key counts as empty.

        Raises StoreTimeout if others have changed the key at each attempt until the timeout.
        """
        addition = _bytes(value)
        self._change(key, lambda entry: (entry.value if entry else b"") + addition)

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Write desired_value if the key has expected_value; an absent key counts as empty.

        Returns the value that the key has afterwards, as bytes; expected_value if it is still
        absent. Raises StoreTimeout if others have changed the key at each attempt until the
        timeout.
        """
        expected, desired = _bytes(expected_value), _bytes(desired_value)

        def change(entry: Entry | None) -> bytes | None:
            return desired if (entry.value if entry else b"") == expected else None

        entry = self._change(key, change)
        return entry.value if entry else expected

    def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Wait until all these keys exist, for at most `timeout` (None: the store's).

        Raises StoreTimeout, which names the missing keys.
        """
        self._wait(keys, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all these keys exist now."""
        _check_list(keys)
        return all(self._client.get(self._key(key)) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        """Delete the key and return whether it existed."""
        return self._client.delete(self._key(key))

    def list_keys(self) -> list[str]:
        """Return all keys, sorted, without the store's prefix."""
        listing = self._client.list(_KEYS + self._prefix)
        return [entry.key.removeprefix(_KEYS + self._prefix) for entry in listing.items]

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self.list_keys())

    def queue_push(self, key: str, value: Value) -> None:
        """Append a value to a queue. Queues have names of their own, independent of keys."""
        self._queue(key).push(_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take out the first value of a queue and return it as bytes. Each value is taken once.

        If `block`, wait for a value for the store's timeout. Raises StoreTimeout if there is none.
        """
        queue = self._queue(key)
        value = queue.pop(self._seconds) if block else queue.take()
        if value is None:
            raise StoreTimeout(f"the queue {key!r} is empty")
        return value

    def queue_len(self, key: str) -> int:
        """Return the number of values in a queue."""
        return len(self._queue(key))

    def barrier(self, key: str, world_size: int, timeout: Timeout = None) -> None:
        """Wait until there are `world_size` callers with this key. It may be called repeatedly.

        Raises StoreTimeout if they do not come within `timeout` (None: the store's); this call then
        no longer counts. Raises ValueError for a world_size below 1.
        """
        seconds = _in_seconds(timeout, self._seconds)
        StoreBarrier(self._beside(_BARRIERS, key), world_size).pass_it(seconds)

    def watch(self, prefix: str = "", timeout: Timeout = None) -> StoreWatch:
        """Watch the keys that begin with `prefix`: first the existing ones, as puts, and then every
        change, in order and without gaps.

        Iterating raises StoreTimeout when nothing changes for `timeout` (None: the store's), and
        may then continue. Use the watch in `with`, since it holds a connection:

            with store.watch("loss/") as changes:
                event = next(changes)  # event.key, event.value
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
    """Iterates over the changes of a store's keys, for one thread at a time. See Store.watch()."""

    def __init__(self, client: StoreClient, prefix: str, timeout: float) -> None:
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
        """Return the next change, a put or a deletion.

        Raises StoreTimeout when none comes for `timeout` (None: the watch's), after which it may be
        called again.
        """
        if self._present:
            return self._present.popleft()
        return self._changes.next(_in_seconds(timeout, self._timeout))

    def close(self) -> None:
        """End the watch and release its connection."""
        self._changes.close()


class PrefixStore(Store):
    """Presents a store with a prefix and a slash before every key, as store.prefix(prefix) does.

    Example: `PrefixStore("run1", store).set("x", b"1")` writes the key "run1/x" of `store`.
    """

    def __init__(self, prefix: str, store: Store) -> None:
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
