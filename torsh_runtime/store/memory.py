"""A store in the memory of this process, for one asyncio loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.base import (
    Compare,
    Delete,
    Entry,
    Event,
    Listing,
    Outcome,
    Put,
    Store,
    Write,
)
from torsh_runtime.store.state import KeyValueState, check_key

T = TypeVar("T")


class MemoryStore(Store):
    """Implements the Store port over a KeyValueState. Use it from one event loop only.

    `clock` returns monotonic seconds and decides when leases end; waits are timed by the loop's
    clock. Pass a `state` to bound the history differently. Nothing polls: waits and watches are
    woken by the changes that they wait for, and one timer ends leases.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        state: KeyValueState | None = None,
    ) -> None:
        self._clock = clock
        self._state = state or KeyValueState()
        self._arrivals: dict[str, set[_Arrival]] = {}
        self._watchers: dict[str, set[asyncio.Future[int]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf  # no lease ends before this
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        return self._current().get(key)

    async def list(self, prefix: str) -> Listing:
        return self._current().listing(prefix)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        before = self._current().revision
        return (await self.transact((), (Delete(key),))).revision > before

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        outcome, events = self._current().transact(compares, writes)
        self._publish(events)
        return outcome

    async def add(self, key: str, amount: int) -> int:
        total, events = self._current().add(key, amount)
        self._publish(events)
        return total

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        if not 0 <= timeout < math.inf:
            raise StoreError(f"a timeout must be a finite number of seconds >= 0, got {timeout}")
        wanted = tuple(dict.fromkeys(map(check_key, keys)))
        try:
            async with asyncio.timeout(timeout):
                while missing := self._missing(wanted):
                    await self._arrival_of(missing)
        except TimeoutError:
            if missing := self._missing(wanted):
                raise missed(missing, timeout) from None
        found = (self._state.get(key) for key in wanted)
        return {entry.key: entry for entry in found if entry}

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        seen = after
        while True:
            state = self._current()
            events = state.events_after(prefix, seen)
            seen = max(seen, state.revision)
            for event in events:
                yield event
            if not events:
                seen = max(seen, await self._next_match(prefix))

    async def grant(self, ttl: float) -> int:
        now = self._clock()
        lease = self._current().grant(ttl, now)
        if now + ttl < self._timer_due:
            self._arm(now + ttl)
        return lease

    async def keep_alive(self, lease: int) -> None:
        self._current().keep_alive(lease, self._clock())

    async def revoke(self, lease: int) -> None:
        self._publish(self._current().revoke(lease))

    async def close(self) -> None:
        """End all waits and watches with StoreError, and cancel the leases' timer."""
        self._closed = True
        self._arm(math.inf)
        for arrival in {a for waiting in self._arrivals.values() for a in waiting}:
            _wake(arrival.done, None)
        for watching in self._watchers.values():
            for future in watching:
                _wake(future, 0)

    def _current(self) -> KeyValueState:
        """End the leases that are due and return the state. Raises StoreError if it is closed."""
        if self._closed:
            raise StoreError("the store is closed. Open a new one to go on.")
        if self._clock() >= self._timer_due:
            self._publish(self._state.expire(self._clock()))
            self._arm(self._state.next_end())
        return self._state

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = due
        if due < math.inf:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._lease_due)

    def _lease_due(self) -> None:
        self._timer = None
        self._current()
        if self._timer is None:  # the injected clock lags behind the loop's
            self._arm(self._timer_due)

    def _missing(self, keys: Iterable[str]) -> tuple[str, ...]:
        state = self._current()
        return tuple(key for key in keys if state.get(key) is None)

    async def _arrival_of(self, keys: Sequence[str]) -> None:
        arrival = _Arrival(keys)
        for key in keys:
            self._arrivals.setdefault(key, set()).add(arrival)
        try:
            await arrival.done
        finally:
            for key in arrival.missing:
                _discard(self._arrivals, key, arrival)

    async def _next_match(self, prefix: str) -> int:
        """Wait for a change under the prefix; return the revision up to which no other matched."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(prefix, set()).add(future)
        try:
            return await future
        finally:
            _discard(self._watchers, prefix, future)

    def _publish(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "put":
                for arrival in self._arrivals.pop(event.key, ()):
                    arrival.has(event.key)
        for prefix in [*self._watchers] if events else ():
            match = next((e for e in events if e.key.startswith(prefix)), None)
            if match is not None:
                for future in self._watchers.pop(prefix):
                    _wake(future, match.revision - 1)


class _Arrival:
    """Holds the missing keys of a wait; `done` completes once each has been seen."""

    __slots__ = ("done", "missing")

    def __init__(self, keys: Iterable[str]) -> None:
        self.missing = set(keys)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def has(self, key: str) -> None:
        self.missing.discard(key)
        if not self.missing:
            _wake(self.done, None)


def _wake(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _discard(index: dict[str, set[T]], name: str, member: T) -> None:
    members = index.get(name)
    if members is not None:
        members.discard(member)
        if not members:
            del index[name]


def missed(missing: Sequence[str], timeout: float) -> StoreTimeout:
    """Return the error of a wait of `timeout` seconds in which these keys were not written."""
    shown = ", ".join(map(repr, missing[:8]))
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return StoreTimeout(
        f"waited {timeout:g} s for {len(missing)} missing key(s): {shown}{more}. The processes "
        f"that write them have not come this far: look at their output, or wait longer."
    )
