"""Streams of the device "far", which copy to the host when somebody waits for them, not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import backend_registration


class Stream:
    """Work in order. It is done when the stream, or one that follows it, is waited for."""

    num_waits = 0
    """How often a program has waited for any stream."""

    def __init__(self, device: Any = None) -> None:
        self._pending: list[Callable[[], object]] = []

    def enqueue(self, work: Callable[[], object]) -> None:
        """Do this work behind what is there."""
        self._pending.append(work)

    def wait_stream(self, other: Stream) -> None:
        """Do what is enqueued later behind what the other stream has now."""
        self._pending += [partial_run(other, len(other._pending))]

    def synchronize(self) -> None:
        """Wait until all is done."""
        Stream.num_waits += 1
        self.run(len(self._pending))

    def run(self, count: int) -> None:
        """Do the first of what is enqueued."""
        work, self._pending = self._pending[:count], self._pending[count:]
        for each in work:
            each()


def partial_run(stream: Stream, count: int) -> Callable[[], None]:
    """What another stream does to follow this one."""
    return lambda: stream.run(count)


class Cudart:
    """Notes which memory is page-locked."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.can_lock = True

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        """Page-lock memory, of which none may be locked already; return an error's number."""
        taken = any(a < address + size and address < a + s for a, s in self.locked.items())
        if taken or not self.can_lock:
            return 712
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        """Undo that."""
        del self.locked[address]
        return 0


class Module(backend_registration._DummyBackendModule):
    """What torch.cuda is for GPUs."""

    Stream = Stream

    def __init__(self) -> None:
        self.main = self._current = Stream()
        self._cudart = Cudart()

    def cudart(self) -> Cudart:
        """Return the runtime's functions."""
        return self._cudart

    def current_stream(self, device: Any = None) -> Stream:
        """Return the stream that copies are enqueued on."""
        return self._current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Make a stream the current one."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before


module = Module()
