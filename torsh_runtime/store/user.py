"""The job's store for programs, with the names of torch.distributed.Store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from operator import index

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.arguments import Timeout, Value, as_bytes, check_keys, in_seconds
from torsh_runtime.store.barrier import StoreBarrier
from torsh_runtime.store.base import Compare, Entry, Put
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.user_queues import Queues
from torsh_runtime.store.watch import StoreWatch

_KEYS, _BARRIERS = "keys/", "barriers/"


class Store(Queues):
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
        self._seconds = in_seconds(timeout, 0.0)

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
        self._seconds = in_seconds(timeout, self._seconds)

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
        self._client.put(self._key(key), as_bytes(value))

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
        check_keys(keys)
        pairs = zip(map(self._key, keys), map(as_bytes, values), strict=True)
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
        addition = as_bytes(value)
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
        expected, desired = as_bytes(expected_value), as_bytes(desired_value)

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
        check_keys(keys)
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
        seconds = in_seconds(timeout, self._seconds)
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
        seconds = in_seconds(timeout, self._seconds)
        return StoreWatch(self._client.scoped(_KEYS + self._prefix), prefix, seconds)

    def _wait(self, keys: Sequence[str], timeout: Timeout) -> Mapping[str, Entry]:
        check_keys(keys)
        seconds = in_seconds(timeout, self._seconds)
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
