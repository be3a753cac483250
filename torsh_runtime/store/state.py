"""The revisioned key-value state behind the in-memory store: pure, no clock and no I/O.

Each request returns its result and the events it caused. Times are seconds of one monotonic
clock, passed in by the caller. After a request that raised StoreError the state is unchanged.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Delete, Entry, Event, Listing, Outcome, Put, Write

T = TypeVar("T")

MAX_COUNTER = 2**63 - 1


class Applied(NamedTuple, Generic[T]):
    """What a request returned, and the events it caused in order of their revisions."""

    result: T
    events: tuple[Event, ...]


class _Lease:
    __slots__ = ("end", "keys", "ttl")

    def __init__(self, ttl: float, end: float) -> None:
        self.ttl = ttl
        self.end = end
        self.keys: set[str] = set()


class KeyValueState:
    """Keys, leases and a bounded history of events.

    The history keeps the newest `max_events` events and at most about `max_bytes` of keys and
    values; `events_after` refuses to go further back than that.
    """

    def __init__(
        self,
        max_events: int = 16384,
        max_bytes: int = 64 << 20,
        first_lease: int | None = None,
    ) -> None:
        """first_lease: the first lease's id, from which on they count up; None: a random one of 62
        bits, so that no lease of another life of the store is taken for one of this.
        """
        self.revision = 0
        """Number of the latest change; 0 in a new state."""
        self.compacted = 0
        """Events up to this revision may have been forgotten."""
        self._entries: dict[str, Entry] = {}
        self._names: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._last_lease = secrets.randbits(62) if first_lease is None else first_lease - 1
        self._history: deque[Event] = deque()
        self._history_bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes

    def get(self, key: str) -> Entry | None:
        """The key as it stands."""
        return self._entries.get(check_key(key))

    def listing(self, prefix: str) -> Listing:
        """The keys that begin with the prefix, sorted."""
        size = len(prefix)
        start = bisect_left(self._names, prefix)
        end = bisect_right(self._names, prefix, lo=start, key=lambda name: name[:size])
        items = tuple(self._entries[name] for name in self._names[start:end])
        return Listing(items, self.revision)

    def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Applied[Outcome]:
        """Make all writes as one revision if every condition holds.

        StoreError when a key is written twice or a lease is unknown.
        """
        check_writes(writes)
        if not all(self._holds(compare) for compare in compares):
            return Applied(Outcome(False, self.revision), ())
        for write in writes:
            if isinstance(write, Put) and write.lease:
                self._lease(write.lease)
        events = self._commit(writes)
        return Applied(Outcome(True, self.revision), events)

    def add(self, key: str, amount: int) -> Applied[int]:
        """Add to a counter of decimal text within 64 bits; the key keeps its lease."""
        entry = self.get(key)
        total = counted(key, entry, amount)
        lease = entry.lease if entry else 0
        return Applied(total, self._commit([Put(key, str(total).encode(), lease)]))

    def grant(self, ttl: float, now: float) -> int:
        """A new lease that ends at now + ttl. StoreError when ttl is not finite and positive."""
        if not (ttl > 0 and math.isfinite(ttl)):
            raise StoreError(f"a lease's ttl must be a finite number of seconds > 0, got {ttl}")
        self._last_lease += 1
        self._leases[self._last_lease] = _Lease(ttl, now + ttl)
        return self._last_lease

    def keep_alive(self, lease: int, now: float) -> None:
        """Let the lease end at now + its ttl. StoreError when it has ended."""
        held = self._lease(lease)
        held.end = now + held.ttl

    def revoke(self, lease: int) -> tuple[Event, ...]:
        """End the lease and delete its keys as one revision; nothing when it has ended."""
        held = self._leases.pop(lease, None)
        return self._commit([Delete(key) for key in sorted(held.keys)]) if held else ()

    def expire(self, now: float) -> tuple[Event, ...]:
        """End every lease whose time has come, the earliest first."""
        ended = [(held.end, lease) for lease, held in self._leases.items() if held.end <= now]
        return tuple(event for _, lease in sorted(ended) for event in self.revoke(lease))

    def next_end(self) -> float:
        """When the earliest lease ends; infinity without leases."""
        return min((held.end for held in self._leases.values()), default=math.inf)

    def events_after(self, prefix: str, after: int) -> tuple[Event, ...]:
        """The events under the prefix with a revision > after, oldest first.

        StoreError when some of them may have been forgotten.
        """
        if after < self.compacted:
            raise StoreError(
                f"watch of {prefix!r} after revision {after}: the store remembers only changes "
                f"after revision {self.compacted}. List the prefix again and watch from the "
                f"listing's revision."
            )
        found: list[Event] = []
        for event in reversed(self._history):
            if event.revision <= after:
                break
            if event.key.startswith(prefix):
                found.append(event)
        return tuple(reversed(found))

    def _holds(self, compare: Compare) -> bool:
        entry = self.get(compare.key)
        return (entry.revision if entry else 0) == compare.revision

    def _lease(self, lease: int) -> _Lease:
        held = self._leases.get(lease)
        if held is None:
            raise StoreError(
                f"lease {lease} is unknown or has ended, and its keys are gone with it. "
                f"Grant a new lease and write them again."
            )
        return held

    def _commit(self, writes: Iterable[Write]) -> tuple[Event, ...]:
        effective = [w for w in writes if isinstance(w, Put) or w.key in self._entries]
        if not effective:
            return ()
        self.revision += 1
        events = tuple(self._apply(write) for write in effective)
        self._remember(events)
        return events

    def _apply(self, write: Write) -> Event:
        self._unbind(write.key)
        if isinstance(write, Delete):
            del self._entries[write.key]
            del self._names[bisect_left(self._names, write.key)]
            return Event("delete", write.key, b"", self.revision)
        if write.key not in self._entries:
            insort(self._names, write.key)
        self._entries[write.key] = Entry(write.key, write.value, self.revision, write.lease)
        if write.lease:
            self._leases[write.lease].keys.add(write.key)
        return Event("put", write.key, write.value, self.revision, write.lease)

    def _unbind(self, key: str) -> None:
        entry = self._entries.get(key)
        held = self._leases.get(entry.lease) if entry else None
        if held is not None:
            held.keys.discard(key)

    def _remember(self, events: tuple[Event, ...]) -> None:
        self._history.extend(events)
        self._history_bytes += sum(map(_size, events))
        while len(self._history) > self._max_events or self._history_bytes > self._max_bytes:
            forgotten = self._history.popleft()
            self._history_bytes -= _size(forgotten)
            self.compacted = forgotten.revision


def check_key(key: str) -> str:
    """The key itself. StoreError when it is no non-empty string of encodable characters."""
    if not isinstance(key, str) or not key:
        raise StoreError(f"a key must be a non-empty string, got {key!r}")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise StoreError(f"the key {key!r} cannot be written as UTF-8") from None
    return key


def check_writes(writes: Sequence[Write]) -> None:
    """StoreError when a key is impossible or written twice, or a value is not bytes."""
    seen: set[str] = set()
    for write in writes:
        if check_key(write.key) in seen:
            raise StoreError(f"a transaction may write {write.key!r} only once")
        seen.add(write.key)
        if isinstance(write, Put) and not isinstance(write.value, bytes):
            raise StoreError(
                f"the value of {write.key!r} must be bytes, got {type(write.value).__name__}"
            )


def counted(key: str, entry: Entry | None, amount: int) -> int:
    """The counter's value after adding. StoreError when it is no number or leaves 64 bits."""
    total = _counter(entry) + amount
    if abs(total) > MAX_COUNTER:
        raise StoreError(f"add to {key!r}: {total} does not fit a 64-bit counter")
    return total


def _counter(entry: Entry | None) -> int:
    if entry is None:
        return 0
    try:
        return int(entry.value)
    except ValueError:
        raise StoreError(
            f"add to {entry.key!r}: its value {entry.value[:40]!r} is not a decimal number"
        ) from None


def _size(event: Event) -> int:
    return len(event.key) + len(event.value)
