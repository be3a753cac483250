"""Lets ranks rendezvous in a store, and learn there that one of them has given up.

Each group has keys of its own:

    <topic>/<rank>  what a rank publishes under a topic
    failed          [rank, its error's class, the ranks that this blames, its message], of the
                    first rank that gave up
    backend/0       the backend that the first rank was given, where callers have it published
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgpack

from torsh_runtime.backends.base import BackendKind, MeetingStore
from torsh_runtime.errors import (
    CommError,
    CommTimeout,
    ConfigError,
    PeerLost,
    StoreError,
    StoreTimeout,
)

SLICE = 1.0
"""Seconds between two looks at whether another rank has given up."""


def post_abort(store: MeetingStore, rank: int, error: BaseException) -> None:
    """Report to the ranks that rendezvous in the store why this one gives up.

    Does nothing if a rank has reported a failure already, or if the store cannot be reached.
    """
    with suppress(StoreError):  # without a store there is nobody to tell
        if store.get("failed") is None:
            kind, words = type(error).__name__, str(error)
            store.put("failed", msgpack.packb([rank, kind, _culprits(error), words or kind]))


def read_abort_reason(store: MeetingStore, rank: int, kind: BackendKind) -> None:
    """Raise what another rank gave up for after all had met, if one tells that within a moment."""
    BootstrapStore(store, rank, SLICE, kind).read_abort_reason()


class BootstrapStore:
    """The group's keys in the store, and the deadline for all that is done with them."""

    def __init__(
        self, store: MeetingStore, rank: int, timeout: float, kind: BackendKind | None
    ) -> None:
        """Join the group's keys as `rank`, with a deadline in `timeout` seconds.

        `kind` is the backend that the group is to have; None means the first rank's.
        """
        self.rank = rank
        self._kind = kind
        self._store = store
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def remaining(self) -> float:
        """Return the seconds until the deadline, always more than 0."""
        return max(self._deadline - time.monotonic(), 0.001)

    def has_passed(self) -> bool:
        """Return whether the deadline has passed."""
        return time.monotonic() >= self._deadline

    def exchange(self, topic: str, value: bytes, ranks: Iterable[int]) -> dict[int, bytes]:
        """Publish `value` under the topic and return the values of all `ranks`, by rank.

        Raises CommTimeout naming the ranks that published none before the deadline.
        """
        self._store.put(f"{topic}/{self.rank}", value)
        keys = {f"{topic}/{peer}": peer for peer in ranks}
        while True:
            remaining = self.remaining()
            try:
                found = self._store.wait(list(keys), min(remaining, SLICE))
                return {peer: found[key].value for key, peer in keys.items()}
            except StoreTimeout:
                self.look_around()
                if remaining <= SLICE:
                    missing = [peer for key, peer in keys.items() if self._store.get(key) is None]
                    raise self.too_late(missing) from None

    def read_abort_reason(self) -> None:
        """Raise what another rank gave up for, if one tells that within a moment."""
        with suppress(StoreTimeout):
            self._store.wait(["failed"], min(self.remaining(), SLICE))
        self.look_around()

    def look_around(self) -> None:
        """Raise what another rank gave up for, if one has; ConfigError if rank 0 is elsewhere."""
        self._check_backend()
        entry = self._store.get("failed")
        if entry is None:
            return
        rank, kind, culprits, words = _account(entry.value)
        if kind == PeerLost.__name__:
            detail = f"rank {rank} found that it is gone ({words})"
            raise PeerLost(culprits[0], "init_process_group", 0, detail)
        if kind == CommTimeout.__name__:
            raise self.too_late(culprits, f", as rank {rank} found")
        raise CommError(f"rank {rank} gave up joining the group: {words}")

    def _check_backend(self) -> None:
        entry = self._store.get("backend/0")
        if self._kind is None or entry is None:
            return
        if entry.value != self._kind.value.encode():
            raise ConfigError(
                f"rank {self.rank} was given backend {self._kind} and rank 0 "
                f"{entry.value.decode(errors='replace')}: give all ranks of a group the same"
            )

    def too_late(self, missing: Sequence[int], detail: str = "") -> CommTimeout:
        """Return the error to raise if the ranks in `missing` have not come in time."""
        return CommTimeout("init_process_group", 0, self._timeout, missing, detail)


def _account(value: bytes) -> tuple[int, str, list[int], str]:
    """Decode the report of a rank that gave up. Raises CommError if it is malformed."""
    try:
        rank, kind, culprits, words = msgpack.unpackb(value)
    except (ValueError, TypeError, msgpack.UnpackException):
        rank, kind, culprits, words = None, None, None, None
    named = isinstance(culprits, list) and all(type(each) is int for each in culprits)
    told = type(rank) is int and isinstance(kind, str) and isinstance(words, str)
    if told and named and (culprits or kind != PeerLost.__name__):
        return rank, kind, culprits, words
    raise CommError("another rank gave up joining the group, and its words make no sense here")


def _culprits(error: BaseException) -> list[int]:
    match error:
        case PeerLost(rank=rank):
            return [rank]
        case CommTimeout(missing=missing):
            return list(missing)
    return []
