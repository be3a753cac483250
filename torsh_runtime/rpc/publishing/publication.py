"""A writer's end: versions of one state, each in a slot of shared memory."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays import stage
from torsh_runtime.arrays.raw import copy_out
from torsh_runtime.backends.future import around_waits
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.checkpoint.manifest import Manifest
from torsh_runtime.errors import BackendUnavailable, CommError, CommTimeout, ConfigError
from torsh_runtime.layout import Piece
from torsh_runtime.rpc.options import WorkerInfo
from torsh_runtime.rpc.publishing.description import (
    Placed,
    SlotPlan,
    manifest_of,
    plan,
    split,
    text_of,
)
from torsh_runtime.rpc.publishing.registry import VERSIONS
from torsh_runtime.rpc.publishing.versions import raw_pieces

Reader = tuple[int, int]
"""The id of a worker, and the number of its subscription."""


class Pin(NamedTuple):
    """A version that is held for a reader of another node."""

    reader: WorkerInfo
    lease: Any
    manifest: Manifest


class Publication:
    """Publishes under one name. Any thread may use it; publish() serves one at a time."""

    def __init__(self, name: str, more_versions: Callable[[], int]) -> None:
        """Create the slots. more_versions() returns the first of VERSIONS numbers that are free."""
        self._name, self._more_versions = name, more_versions
        self._slots = _native.Slots()
        self._publishing = threading.Lock()
        self._next = self._end = 0
        self._known: tuple[Placed, bytes] = {}, b""
        self._reader: Any = _native.SlotReader(os.getpid(), self.file, self.token, name)
        self._lock = threading.Lock()
        self._pins: dict[int, Pin] = {}
        self._waiting: dict[Reader, tuple[int, Future[bool]]] = {}
        """By reader: the version it has, and the future that becomes true when there is a later
        one."""

    @property
    def file(self) -> int:
        """Return this process's descriptor of the slots' table."""
        found: int = self._slots.file
        return found

    @property
    def token(self) -> bytes:
        """Return the bytes that the table begins with."""
        found: bytes = self._slots.token
        return found

    def publish(self, state: Any, timeout: float) -> int:
        """Copy the state into a slot and make it the newest version. Return its number.

        Raises ConfigError for what cannot be published. Raises CommTimeout, naming the readers, if
        they hold all slots for `timeout` seconds.
        """
        deadline = monotonic() + timeout
        if not self._publishing.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            raise self._timeout(timeout, ": another thread is still publishing")
        try:
            if self._reader is None:
                raise self._closed()
            own = plan(self._name, state)
            text = text_of(self._manifest(own), own.tree)
            slot = self._take(own.num_bytes + len(text), timeout, deadline)
            self._fill(slot, own, text)
            version = self._number()
            self._slots.publish(slot, version, own.num_bytes, len(text))
        finally:
            self._publishing.release()
        self._wake(version)
        return version

    def pin(self, reader: WorkerInfo) -> tuple[int, int, bytes] | None:
        """Hold the newest version for a reader of another node. Return the pin, the version's
        number and its text, or None if there is no version yet."""
        reader_here = self._reader
        lease = None if reader_here is None else reader_here.hold()
        if lease is None:
            return None
        text: bytes = lease.text
        pin = Pin(reader, lease, Manifest.from_bytes(split(text)[0]))
        with self._lock:
            number = secrets.randbits(62)  # which another process of this name does not know
            self._pins[number] = pin
            return number, lease.version, text

    def unpin(self, pin: int) -> None:
        """Release a version that the reader does not need any more."""
        with self._lock:
            self._pins.pop(pin, None)

    def fetch(self, pin: int, wanted: Sequence[tuple[str, Piece]]) -> list[NDArray[np.uint8]]:
        """Return the bytes of these pieces. Raises CommError if the version is not held any
        more."""
        with self._lock:
            found = self._pins.get(pin)
        if found is None:
            raise CommError(
                f"{self._name!r}: the version is not held any more for its reader, which counted "
                f"as lost: take the newest version again"
            )
        return raw_pieces(found.lease, found.manifest, wanted)

    def await_newer(self, reader: Reader, version: int) -> Future[bool]:
        """Return a future that becomes true when there is a later version, and false when none will
        come. If a reader asks again, its earlier future becomes false."""
        future: Future[bool] = Future()
        with self._lock:
            earlier = self._waiting.pop(reader, None)
            newest = 0 if self._reader is None else self._reader.newest
            if self._reader is not None and newest <= version:
                self._waiting[reader] = version, future
            else:
                future.set_result(newest > version)
        if earlier is not None:
            earlier[1].set_result(False)
        return future

    def forget(self, worker: int) -> None:
        """Release everything that is held for a worker that has ended."""
        with self._lock:
            self._waiting = {who: own for who, own in self._waiting.items() if who[0] != worker}
            self._pins = {pin: own for pin, own in self._pins.items() if own.reader.id != worker}

    def close(self) -> None:
        """Publish no more, once no other thread does. What readers have seen stays available to
        them, and its memory is freed when they have released it. Others find nothing any more."""
        self._slots.stop()
        with self._publishing:
            self._slots.close()
            with self._lock:
                self._reader = None
                waiting, self._waiting = self._waiting, {}
                self._pins.clear()
        for _, future in waiting.values():
            future.set_result(False)

    def _manifest(self, own: SlotPlan) -> bytes:
        """Return the manifest. That of the version before is used again if the arrays are placed
        alike, since it takes long to make."""
        if not self._known[1] or self._known[0] != own.placed:
            self._known = own.placed, manifest_of(own.placed, own.num_bytes)
        return self._known[1]

    def _take(self, num_bytes: int, timeout: float, deadline: float) -> int:
        try:
            with around_waits.by:
                slot = self._slots.take(num_bytes, max(deadline - monotonic(), 0.0))
        except OSError as error:
            raise BackendUnavailable(
                f"{num_bytes} bytes of shared memory for {self._name!r}",
                f"The system refused them: {error.strerror}. Give the job more memory, or have "
                f"readers let go of versions sooner: {self._holders() or 'none holds one now'}.",
            ) from error
        if slot is None and not self._reader.is_open:
            raise self._closed()
        if slot is None:
            raise self._timeout(
                timeout,
                f": readers hold all {_native.MOST_SLOTS} slots ({self._holders()}). They have to "
                f"close versions and drop the arrays of them when they take newer ones",
            )
        return slot

    def _fill(self, slot: int, own: SlotPlan, text: bytes) -> None:
        plain = [(start, values) for start, _, values in own.sources if _is_plain(values)]
        starts = [start for start, _ in plain]
        self._slots.fill(slot, [values for _, values in plain], starts, stage)
        memory = self._slots.memory(slot)
        for start, size, values in own.sources:
            if not _is_plain(values):
                copy_out(values, memory[start : start + size])
        end = own.num_bytes
        memory[end : end + len(text)] = np.frombuffer(text, np.uint8)

    def _number(self) -> int:
        if self._next == self._end:
            self._next = self._more_versions()
            self._end = self._next + VERSIONS
        self._next += 1
        return self._next - 1

    def _wake(self, version: int) -> None:
        with self._lock:
            ready = {who for who, (known, _) in self._waiting.items() if known < version}
            futures = [self._waiting.pop(who)[1] for who in ready]
        for future in futures:
            future.set_result(True)

    def _holders(self) -> str:
        """Return a text that says which readers hold which version."""
        with self._lock:
            pins = [(pin.reader.name, pin.lease.version) for pin in self._pins.values()]
        here = [
            (f"{reader} (pid {pid})", version)
            for pid, reader, version in self._slots.holders()
            if pid != os.getpid() or reader != self._name
        ]
        return ", ".join(f"{reader} holds version {version}" for reader, version in [*here, *pins])

    def _closed(self) -> ConfigError:
        return ConfigError(f"this worker has stopped publishing {self._name!r}")

    def _timeout(self, seconds: float, detail: str) -> CommTimeout:
        return CommTimeout(f"publish({self._name!r})", 0, seconds, (), detail)


def _is_plain(values: Any) -> bool:
    """Return whether the array's bytes can be copied from this process's memory as they are."""
    if isinstance(values, np.ndarray):
        return values.flags.c_contiguous and values.flags.aligned
    if not hasattr(values, "is_contiguous"):
        return False
    is_lazy = values.is_conj() or values.is_neg()
    return values.device.type == "cpu" and values.is_contiguous() and not is_lazy
