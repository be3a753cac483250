"""The job's store as programs see it, with the names of torch.distributed.Store."""

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
    """Keys and values that all ranks of the job share; any number of threads may use it.

    Keys are non-empty strings; values bytes of a little less than 64 MiB, and strings, which count
    as UTF-8. get_store() gives the job's: nothing that is done here reaches what the library
    keeps there for itself. Every call raises StoreError when the store has gone or refuses, and
    StoreTimeout when it does not answer; TypeError for keys and values that are none, and
    ValueError for timeouts that are none.
    """

    def __init__(self, client: StoreClient, timeout: Timeout, prefix: str = "") -> None:
        """`client`: scoped to what is this store's alone. `timeout`: what get() and wait() take
        unless they are told otherwise, in seconds or as a timedelta. `prefix`: of all keys.
        """
        self._client = client
        self._prefix = prefix
        self._seconds = _in_seconds(timeout, 0.0)

    @property
    def timeout(self) -> timedelta:
        """How long get() and wait() wait at most."""
        return timedelta(seconds=self._seconds)

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Let get() and wait() of this object wait so long, in seconds or as a timedelta."""
        self._seconds = _in_seconds(timeout, self._seconds)

    def prefix(self, prefix: str) -> Store:
        """The same store, in which every key has `prefix` and a slash before it."""
        return Store(self._client, self._seconds, f"{self._prefix}{prefix}/")

    def clone(self) -> Store:
        """The same store with a timeout of its own."""
        return Store(self._client, self._seconds, self._prefix)

    def has_extended_api(self) -> bool:
        """True: it has append, multi_get and multi_set."""
        return True

    def set(self, key: str, value: Value) -> None:
        """Write the key."""
        self._client.put(self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """The key's value; waits for it to be there. StoreTimeout if it does not come."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all these keys; waits until all are there."""
        found = self._wait(keys, None)
        return [found[self._key(key)].value for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Write all these keys as one change: nobody sees some of them without the others."""
        _check_list(keys)
        pairs = zip(map(self._key, keys), map(_bytes, values), strict=True)
        self._client.transact((), [Put(key, value) for key, value in pairs])

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which is decimal text and 0 while it is absent; its new value."""
        return self._client.add(self._key(key), index(amount))

    def append(self, key: str, value: Value) -> None:
        """Write the value behind what the key has."""
        addition = _bytes(value)
        self._change(key, lambda entry: (entry.value if entry else b"") + addition)

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Write desired_value if the key has expected_value, or is absent and that is empty.

        What the key has then; expected_value if it is absent still.
        """
        expected, desired = _bytes(expected_value), _bytes(desired_value)

        def change(entry: Entry | None) -> bytes | None:
            return desired if (entry.value if entry else b"") == expected else None

        entry = self._change(key, change)
        return entry.value if entry else expected

    def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Wait until all these keys are there. StoreTimeout, naming those that are not."""
        self._wait(keys, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these keys are there now."""
        _check_list(keys)
        return all(self._client.get(self._key(key)) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        """Delete the key; whether it was there."""
        return self._client.delete(self._key(key))

    def list_keys(self) -> list[str]:
        """All keys, in order."""
        listing = self._client.list(_KEYS + self._prefix)
        return [entry.key.removeprefix(_KEYS + self._prefix) for entry in listing.items]

    def num_keys(self) -> int:
        """Number of keys."""
        return len(self.list_keys())

    def queue_push(self, key: str, value: Value) -> None:
        """Put a value at the end of a queue. Its name is a matter of its own: no key has it."""
        self._queue(key).push(_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value out of a queue; waits for one if `block`. Each is got once.

        StoreTimeout if there is none.
        """
        queue = self._queue(key)
        value = queue.pop(self._seconds) if block else queue.take()
        if value is None:
            raise StoreTimeout(f"the queue {key!r} is empty")
        return value

    def queue_len(self, key: str) -> int:
        """Number of values in a queue."""
        return len(self._queue(key))

    def barrier(self, key: str, world_size: int, timeout: Timeout = None) -> None:
        """Return when so many have called it with this key; it can be called again and again.

        StoreTimeout if they do not come: then it is as if this one had not called it. ValueError
        for a world_size below 1.
        """
        seconds = _in_seconds(timeout, self._seconds)
        StoreBarrier(self._beside(_BARRIERS, key), world_size).pass_it(seconds)

    def watch(self, prefix: str = "", timeout: Timeout = None) -> StoreWatch:
        """What becomes of the keys that begin with `prefix`: each as it stands, as a put, and then
        every change, in order and without gaps.

        Iterating raises StoreTimeout when nothing comes for `timeout` (None: the store's), and can
        go on then. Use it in `with`, for it holds a connection.
        """
        seconds = _in_seconds(timeout, self._seconds)
        return StoreWatch(self._client.scoped(_KEYS + self._prefix), prefix, seconds)

    def _wait(self, keys: Sequence[str], timeout: Timeout) -> Mapping[str, Entry]:
        _check_list(keys)
        seconds = _in_seconds(timeout, self._seconds)
        return self._client.wait([self._key(key) for key in keys], seconds) if keys else {}

    def _change(self, key: str, change: Callable[[Entry | None], bytes | None]) -> Entry | None:
        """Write what `change` makes of the key, unless it is None; as it stands then."""
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
        """For the library: a part of the store that no key of a program is in, and its prefix."""
        return self._client.scoped(f"{name}/{self._prefix}"), self._prefix

    def _queue(self, key: str) -> StoreQueue:
        return StoreQueue(self._beside(_QUEUES, key))

    def _beside(self, kind: str, key: str) -> StoreClient:
        """What belongs to a key that is none of those that values have."""
        name = self._key(key)
        return self._client.scoped(f"{kind}{len(name)}:{name}/")

    def _key(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"a key must be a string, not {key!r}")
        if not key:
            raise StoreError("a key must be a non-empty string")
        return f"{_KEYS}{self._prefix}{key}"


class StoreWatch(Closing):
    """What becomes of some keys of a store, for one thread at a time. Made by Store.watch()."""

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
        """The next change. StoreTimeout when none comes for `timeout`; call it again."""
        if self._present:
            return self._present.popleft()
        return self._changes.next(_in_seconds(timeout, self._timeout))

    def close(self) -> None:
        """End it."""
        self._changes.close()


class PrefixStore(Store):
    """Another store, in which every key has a prefix and a slash before it."""

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
