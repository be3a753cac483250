"""The revisioned key-value state of the in-memory store, without a clock and without I/O.

Each request returns its result and the events that it caused. Times are seconds of one monotonic
clock, which the caller passes. After a request that raised StoreError the state is unchanged.
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
    """Holds the result of a request, and the events that it caused in order of their revisions."""

    result: T
    events: tuple[Event, ...]


class _Lease:
    __slots__ = ("end", "keys", "ttl")

    def __init__(self, ttl: float, end: float) -> None:
        self.ttl = ttl
        self.end = end
        self.keys: set[str] = set()


class KeyValueState:
    """Holds keys, leases and a bounded history of events.

    The history keeps the newest `max_events` events and at most about `max_bytes` of keys and
    values; `events_after` refuses to go further back than that.
    """

    def __init__(
        self,
        max_events: int = 16384,
        max_bytes: int = 64 << 20,
        first_lease: int | None = None,
    ) -> None:
        """Create an empty state.

        `first_lease` is the id of the first lease, and the following ids count up from it. The
        default is a random number of 62 bits, so that no lease of a store that was restarted is
        confused with one of this state.
        """
        self.revision = 0
        """Revision of the latest change; 0 in a new state."""
        self.compacted = 0
        """Revision up to which events may have been dropped from the history."""
        self._entries: dict[str, Entry] = {}
        self._names: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._last_lease = secrets.randbits(62) if first_lease is None else first_lease - 1
        self._history: deque[Event] = deque()
        self._history_bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes

    def get(self, key: str) -> Entry | None:
        """Return the current state of the key, or None if it does not exist."""
        return self._entries.get(check_key(key))

    def listing(self, prefix: str) -> Listing:
        """Return the keys that begin with the prefix, sorted."""
        size = len(prefix)
        start = bisect_left(self._names, prefix)
        end = bisect_right(self._names, prefix, lo=start, key=lambda name: name[:size])
        items = tuple(self._entries[name] for name in self._names[start:end])
        return Listing(items, self.revision)

    def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Applied[Outcome]:
        """Make all writes as one revision if every condition holds.

        Raises StoreError when a key is written twice or a lease is unknown.
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
        """Add to a counter, which is decimal text; the key keeps its lease.

        Raises StoreError when the value is no number, or the sum does not fit into 64 bits.
        """
        entry = self.get(key)
        total = counted(key, entry, amount)
        lease = entry.lease if entry else 0
        return Applied(total, self._commit([Put(key, str(total).encode(), lease)]))

    def grant(self, ttl: float, now: float) -> int:
        """Create a lease that ends at now + ttl, and return its id.

        Raises StoreError when ttl, in seconds, is not finite and positive.
        """
        if not (ttl > 0 and math.isfinite(ttl)):
            raise StoreError(f"a lease's ttl must be a finite number of seconds > 0, got {ttl}")
        self._last_lease += 1
        self._leases[self._last_lease] = _Lease(ttl, now + ttl)
        return self._last_lease

    def keep_alive(self, lease: int, now: float) -> None:
        """Extend the lease until now + its ttl. Raises StoreError when it has ended."""
        held = self._lease(lease)
        held.end = now + held.ttl

    def revoke(self, lease: int) -> tuple[Event, ...]:
        """End the lease and delete its keys as one revision; do nothing when it has ended."""
        held = self._leases.pop(lease, None)
        return self._commit([Delete(key) for key in sorted(held.keys)]) if held else ()

    def expire(self, now: float) -> tuple[Event, ...]:
        """End every lease that is due at `now`, the earliest first."""
        ended = [(held.end, lease) for lease, held in self._leases.items() if held.end <= now]
        return tuple(event for _, lease in sorted(ended) for event in self.revoke(lease))

    def next_end(self) -> float:
        """Return the moment at which the earliest lease ends; infinity without leases."""
        return min((held.end for held in self._leases.values()), default=math.inf)

    def events_after(self, prefix: str, after: int) -> tuple[Event, ...]:
        """Return the events under the prefix with a revision > after, oldest first.

        Raises StoreError when some of them may have been dropped from the history.
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
    """Return the key. Raises StoreError unless it is a non-empty string that UTF-8 can encode."""
    if not isinstance(key, str) or not key:
        raise StoreError(f"a key must be a non-empty string, got {key!r}")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise StoreError(f"the key {key!r} cannot be written as UTF-8") from None
    return key


def check_writes(writes: Sequence[Write]) -> None:
    """Raise StoreError if a key is invalid or written twice, or a value is not bytes."""
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
    """Return the counter's value after adding `amount`; an absent entry counts as 0.

    Raises StoreError when the value is no number, or the sum does not fit into 64 bits.
    """
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
