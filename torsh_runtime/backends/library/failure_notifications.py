"""Reports failures between ranks through the store where their library reports none.

MPI, Gloo and NCCL leave a rank waiting for a peer that has failed, left or aborted. So each rank
notes the first failure, its leaving and, once it has waited for a while, in which operation it
waits. Ranks that wait read the others' notes now and then.

Keys: member/<rank> who a rank is; note/end the failure that ended the group; note/at/<rank> the
operation in which it was last seen waiting, and behind it the one that it has called; note/left/
<rank> how many operations it had begun.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from torsh_runtime.backends.base import BackendKind
from torsh_runtime.backends.bootstrap_store import BootstrapStore
from torsh_runtime.backends.recorder import NotedOperation
from torsh_runtime.errors import (
    CommAborted,
    CommError,
    CommMismatch,
    CommTimeout,
    PeerLost,
    StoreError,
    StoreTimeout,
)
from torsh_runtime.store.base import Compare, Put
from torsh_runtime.store.client import REQUEST_SECONDS, StoreClient

_KINDS = {
    kind.__name__: kind for kind in (CommAborted, CommError, CommMismatch, CommTimeout, PeerLost)
}
_PATIENCE = 5.0
"""Seconds that a call of the store may take, and for which it is not asked again after that."""
_NOT_READ = (ValueError, TypeError, KeyError, msgpack.UnpackException)


class FailureCause(NamedTuple):
    """Describes why a group has ended, in a form that can be sent to other ranks."""

    kind: str
    """Name of the CommError."""
    arguments: tuple[Any, ...]
    """The arguments from which the error is constructed."""
    members: tuple[int, ...] = ()
    """The group's ranks as the launched job numbers them; () if they are unknown."""

    @classmethod
    def of(cls, error: CommError) -> FailureCause:
        """Return the cause from which an equal error can be constructed."""
        made_of: Any = error.__reduce__()
        return cls(type(error).__name__, made_of[1], tuple(error.members))

    def error(self) -> CommError:
        """Return a new error that reports this cause."""
        made = _KINDS[self.kind](*self.arguments)
        made.members = self.members
        return made


@dataclass(slots=True)
class Call:
    """An operation under way."""

    op: str
    sequence: int
    """Number of the collective in the group, from 1; for a message, that of the last one before it.
    """
    peer: int | None = None
    """The one rank that a message needs; None of a collective and of a receive from anyone."""
    message: bool = False
    noted: NotedOperation | None = None
    """In the recording, if it is noted there."""
    suspects: set[int] = field(default_factory=set)
    """The ranks that seemed gone when this operation was last looked after."""
    has_started: bool = True
    """The rank itself has come to it: with streams, its GPU does so later than its call."""


class FailureNotifications:
    """Writes one rank's notes to the store and reads those of its peers.

    Operations have deadlines of their own, so that a store which does not answer delays nobody for
    long: whoever asks it next is told at once that it is silent.
    """

    def __init__(
        self, store: StoreClient, rank: int, world_size: int, backend: BackendKind
    ) -> None:
        """Create the notes of `rank`. The store's keys must be the group's own."""
        self._backend = backend
        self._store = store
        self._notes = store.within(_PATIENCE)
        self._silent_until = 0.0
        self._rank = rank
        self._world_size = world_size
        self._members: dict[int, dict[str, Any]] = {}

    def meet(self, timeout: float, offer: bytes = b"") -> list[bytes]:
        """Wait until every rank has come; what each of them offered.

        Raises CommTimeout naming the ranks that did not come within `timeout` seconds, and what
        another rank gave up for; CommError naming one whose words make no sense.
        """
        found = self._exchange("member", msgpack.packb({**_own_facts(), "offer": offer}), timeout)
        self._members = {rank: _member(rank, value) for rank, value in found.items()}
        return [self._members[rank]["offer"] for rank in range(self._world_size)]

    def all_connected(self, timeout: float) -> None:
        """Wait until every rank has connected to the others, as this one has, so that none leaves
        while others still connect. CommTimeout names the ranks that have not.
        """
        self._exchange("connected", b"", timeout)

    def _exchange(self, what: str, own: bytes, timeout: float) -> dict[int, bytes]:
        store = self._store.within(min(max(timeout, _PATIENCE), REQUEST_SECONDS))
        board = BootstrapStore(store, self._rank, timeout, self._backend)
        return board.exchange(what, own, range(self._world_size))

    @property
    def is_silent(self) -> bool:
        """Return whether the store did not answer when it was last asked, a moment ago."""
        return time.monotonic() < self._silent_until

    @contextmanager
    def _noticing_silence(self) -> Iterator[None]:
        try:
            yield
        except StoreTimeout:
            self._silent_until = time.monotonic() + _PATIENCE
            raise

    def report(self, cause: FailureCause) -> FailureCause:
        """Tell everyone why the group has ended; the cause that stands, which is the first."""
        note = msgpack.packb([cause.kind, cause.arguments])
        try:
            with self._noticing_silence():
                self._notes.transact([Compare("note/end", 0)], [Put("note/end", note)])
                entry = self._notes.get("note/end")
        except StoreError:
            return cause  # nobody can be told; the others find out by their deadlines
        return _cause(entry.value) if entry else cause

    def leave(self, sequence: int) -> None:
        """Note that this rank has left after `sequence` operations."""
        try:
            self._notes.put(f"note/left/{self._rank}", str(sequence).encode())
        except StoreError:
            return  # the store went first: so did whoever held it

    def look(self, call: Call) -> FailureCause | None:
        """Note that this rank waits in `call`; what the others' notes say against waiting on."""
        come_to = call.sequence - (not call.has_started and not call.message)
        if self.is_silent:
            return None
        try:
            with self._noticing_silence():
                self._notes.put(f"note/at/{self._rank}", b"%d %d" % (come_to, call.sequence))
                notes = {entry.key: entry.value for entry in self._notes.list("note/").items}
        except StoreError:
            return None
        if "note/end" in notes:
            return _cause(notes["note/end"])
        return self._lost(call, notes)

    def missing(self, call: Call) -> list[int]:
        """Return the ranks not known to wait in the same operation or a later one.

        It returns [] if the store does not answer.
        """
        if call.message:
            return [call.peer] if call.peer is not None else []
        return [rank for rank, (at, _) in self._places().items() if at < call.sequence]

    def called(self, call: Call) -> list[int]:
        """Return those of the missing ranks that have called the operation.

        Work before it keeps their GPUs from it.
        """
        if call.message:
            return []
        places = self._places().items()
        return [rank for rank, (at, called) in places if at < call.sequence <= called]

    def _places(self) -> dict[int, tuple[int, int]]:
        """Return the operations that the peers have come to and those that they have called.

        It returns nothing if the store does not answer.
        """
        if self.is_silent:
            return {}
        try:
            with self._noticing_silence():
                notes = {entry.key: entry.value for entry in self._notes.list("note/at/").items}
        except StoreError:
            return {}
        found = {rank: notes.get(f"note/at/{rank}", b"-1 -1") for rank in range(self._world_size)}
        return {rank: _place(note) for rank, note in found.items() if rank != self._rank}

    def _lost(self, call: Call, notes: dict[str, bytes]) -> FailureCause | None:
        """Return the loss of a peer that this operation needs, or None.

        A peer is lost if it had ended at two looks of the operation in a row (the last message it
        sent may still be under way), or if it left before this operation.
        """
        peers = range(self._world_size) if call.peer is None else [call.peer]
        left = {rank: notes.get(f"note/left/{rank}") for rank in peers if rank != self._rank}
        ended = {rank for rank in left if left[rank] is None and _has_ended(self._members[rank])}
        gone = {rank for rank, at in left.items() if at is not None and int(at) < call.sequence}
        if call.message:
            ended, gone = ended | {rank for rank in left if left[rank] is not None}, set()
            if call.peer is None and len(ended) < self._world_size - 1:
                return None  # another one may still send
        lost = gone | (ended & call.suspects)
        call.suspects = ended
        if not lost:
            return None
        rank = min(lost)
        detail = "it has left the group" if left[rank] is not None else ""
        return FailureCause("PeerLost", (rank, call.op, call.sequence, detail))


def _place(note: bytes) -> tuple[int, int]:
    come_to, called = note.split()
    return int(come_to), int(called)


def _cause(note: bytes) -> FailureCause:
    try:
        cause = FailureCause(*msgpack.unpackb(note, use_list=False))
        cause.error()
    except _NOT_READ:
        why = "another rank ended the group, and its words make no sense here"
        return FailureCause(CommError.__name__, (why,))
    return cause


def _member(rank: int, value: bytes) -> dict[str, Any]:
    """Decode the facts that a rank published about itself. Raises CommError if it cannot."""
    with suppress(*_NOT_READ):
        facts = msgpack.unpackb(value)
        kinds = {name: type(own) for name, own in {**_own_facts(), "offer": b""}.items()}
        if {name: type(facts[name]) for name in kinds} == kinds:
            return dict(facts)
    raise CommError(
        f"what rank {rank} says of itself makes no sense here: do all ranks run the same "
        f"torsh_runtime?"
    )


def _own_facts() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "began": _began(os.getpid()),
        "host": socket.gethostname(),
        "machine": _machine(),
    }


def _machine() -> list[str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, str(Path("/proc/self/ns/pid").readlink())]


def _has_ended(member: dict[str, Any]) -> bool:
    """Return whether the process has ended, as far as can be seen from this machine."""
    if member["machine"] != _machine():
        return False
    began: str = member["began"]
    return _began(member["pid"]) != began


def _began(pid: int) -> str:
    """Return when the process began, in the kernel's ticks; empty if it has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = status[status.rindex(")") + 2 :].split()
    return "" if fields[0] in "ZX" else fields[19]
