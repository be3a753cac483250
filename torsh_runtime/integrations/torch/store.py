"""Adapts torch's store to the interface through which backends connect ranks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, NoReturn, TypeVar

from torch._C import _distributed_c10d

from torsh_runtime.errors import ConfigError, StoreError, StoreTimeout
from torsh_runtime.store.base import Entry

T = TypeVar("T")
c10d: Any = _distributed_c10d
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1
"""Seconds between two checks for keys; each pause is twice as long as the one before."""
_LEAST = 0.01
"""Seconds in which a store that works answers."""


class TorchStore:
    """Provides the part of StoreClient that the backends need, over a torch Store.

    Revisions and leases, which torch does not have, are 0. Calls without a timeout end within the
    torch Store's own. Raises StoreTimeout or StoreError where torch raises its own errors.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def scoped(self, prefix: str) -> TorchStore:
        """Return this store seen through a prefix."""
        return TorchStore(c10d.PrefixStore(prefix, self._store))

    def put(self, key: str, value: bytes) -> int:
        """Write the key, and return 0 as its revision."""
        self._call(f"put({key!r})", lambda: self._store.set(key, value))
        return 0

    def get(self, key: str) -> Entry | None:
        """Return the key's current entry, or None."""

        def read() -> Entry | None:
            if not self._store.check([key]):
                return None
            return Entry(key, bytes(self._store.get(key)), 0, 0)

        return self._call(f"get({key!r})", read)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter atomically, and return the new value. An absent one counts as 0."""
        return self._call(f"add({key!r})", lambda: int(self._store.add(key, amount)))

    def claim(self, key: str, value: str) -> str:
        """Write the key unless it exists, atomically, and return the value that it has then."""
        found = self._call(f"claim({key!r})", lambda: self._store.compare_set(key, "", value))
        return bytes(found).decode(errors="replace")

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait until all the keys exist, and return their entries.

        Raises StoreTimeout naming the missing keys after `timeout` seconds.
        """
        what, names = f"wait({len(keys)} keys)", list(keys)
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        # torch's own wait writes warnings to stderr when it times out.
        while not self._call(what, lambda: self._store.check(names)):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._too_late(names, timeout)
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, _LONGEST_PAUSE)
        values = self._call(what, lambda: self._store.multi_get(names))
        return {
            key: Entry(key, bytes(value), 0, 0) for key, value in zip(names, values, strict=True)
        }

    def _too_late(self, keys: Sequence[str], timeout: float) -> StoreTimeout:
        missing = ", ".join(key for key in keys if self.get(key) is None)
        return StoreTimeout(f"after {timeout:g} s torch's store still has no {missing or 'answer'}")

    def _call(self, what: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except RuntimeError as error:
            kind = StoreTimeout if "timeout" in str(error).lower() else StoreError
            raise kind(
                f"{what} at torch's store failed: {error}. The process that serves it, rank 0 as "
                f"a rule, has ended or cannot be reached; look at its output."
            ) from None


class TimedStore(TorchStore):
    """Ends calls at a deadline, for which torch's client would wait for ever.

    It does so if the process that serves the store is stopped, or its machine is cut off.
    """

    def __init__(self, store: Any, deadline: float) -> None:
        """Wrap a torch Store. `deadline` is of time.monotonic(), for all calls together."""
        super().__init__(store)
        self._deadline = deadline

    def scoped(self, prefix: str) -> TimedStore:
        """Return this store seen through a prefix, with the same deadline."""
        return TimedStore(c10d.PrefixStore(prefix, self._store), self._deadline)

    def _call(self, what: str, request: Callable[[], T]) -> T:
        return super()._call(what, lambda: until(request, self._deadline))


def until(request: Callable[[], T], deadline: float) -> T:
    """Return the result of the request. Raises RuntimeError if there is none at the deadline.

    The request runs on a thread, which then goes on until the store answers.
    """
    over: Future[T] = Future()

    def run() -> None:
        try:
            over.set_result(request())
        except BaseException as error:
            over.set_exception(error)

    threading.Thread(target=run, name="torsh-store", daemon=True).start()
    try:
        return over.result(max(deadline - time.monotonic(), _LEAST))
    except TimeoutError:
        raise RuntimeError("timeout: there was no answer in time") from None


class FreshKeys:
    """Accesses keys of a torch store that no earlier group over it has used.

    Every rank counts the groups for which it has written keys there, and those that failed.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._store = TorchStore(store)
        self._counter = f"turn/{rank}"
        self._counted = False

    def put(self, key: str, value: bytes) -> int:
        """Write the key, and return 0 as its revision."""
        scoped = self._scoped
        self.count()
        return scoped.put(key, value)

    def count(self) -> None:
        """Count this group, once."""
        if not self._counted:
            self._counted = True
            with suppress(StoreError):
                self._store.add(self._counter, 1)

    def get(self, key: str) -> Entry | None:
        """Return the key's current entry, or None."""
        return self._scoped.get(key)

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait until all the keys exist, and return their entries, as TorchStore.wait() does."""
        return self._scoped.wait(keys, timeout)

    @cached_property
    def _scoped(self) -> TorchStore:
        entry = self._store.get(self._counter)
        return self._store.scoped(f"{int(entry.value) + 1 if entry else 1}/")


class UnsharedStore(c10d.Store):  # type: ignore[misc]
    """Has the place of torch's store in a worker that replaces a lost one, and refuses all calls.

    Rank 0, which serves the store, may have been lost as well. A store of the worker's own would
    let it wait for keys that nobody writes, and count from 0 again.
    """

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(
            f"rank {os.environ.get('RANK')} takes the place of a worker that was lost, and cannot "
            f"reach the store that torch.distributed had at the start: exchange what is needed "
            f"after tr.elastic.join(), by collectives, or leave it out where TORSH_REPLACEMENT is "
            f"set"
        )

    get = set = add = wait = check = compare_set = append = multi_get = multi_set = _refuse
    deleteKey = delete_key = getNumKeys = num_keys = clone = _refuse  # noqa: N815


@cache
def unshared_store() -> UnsharedStore:
    """Return the store of a replacement. torch's own objects would not keep it alive."""
    return UnsharedStore()
