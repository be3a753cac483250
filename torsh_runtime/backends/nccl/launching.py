"""Puts operations on a group's stream and keeps them until the GPU has done them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from torsh_runtime.backends.base import PATIENCE
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.nccl.flights import PER_THREAD, Flight, Flights
from torsh_runtime.backends.nccl.library import Communicator, Cuda, Nccl
from torsh_runtime.backends.nccl.operations import NcclOperations
from torsh_runtime.backends.nccl.plans import Ready
from torsh_runtime.backends.nccl.stream_work import CapturedWork, StreamWork
from torsh_runtime.backends.nccl.streams import Captures
from torsh_runtime.backends.nccl.watcher import own_watcher
from torsh_runtime.backends.operation import Op
from torsh_runtime.backends.work import Work
from torsh_runtime.errors import CommError

_MESSAGES = ("send", "recv")
_OF_DEFAULT_STREAM = (
    "CUDA's default stream cannot be used while a stream that waits for it is captured in a graph: "
    "begin the operation on a stream of your own, or after the capture"
)
_IN_CAPTURE = (
    "the group's operations are being captured in a CUDA graph: begin this one on the captured "
    "stream, after the capture, or in another group"
)
_IN_OTHERS_BLOCK = (
    ": another thread of this process has had a block of the group's operations open for that "
    "long. Leave the block before you wait for other threads, and make a new process group"
)
_SLICE = 0.25
"""Seconds between two looks whether the group still can be used."""
LONGEST = 1800.0
"""Seconds that a block of operations waits for that of another thread."""
Block = list[tuple[Flight, Ready]]
"""Operations that are launched together."""


class Companion(Protocol):
    """Represents a different backend that forms one group with this one."""

    def cause(self) -> FailureCause | None:
        """Return why it has failed, or None if it has not."""

    def end(self, cause: FailureCause) -> None:
        """End it, because this one has failed."""


class NcclLaunching(NcclOperations):
    """A group over an NCCL communicator, and what is under way in it."""

    def __init__(
        self, nccl: Nccl, cuda: Cuda, communicator: Communicator, news: FailureNotifications
    ) -> None:
        super().__init__(nccl, cuda, communicator, news)
        self._captures = Captures()
        self._flights = Flights(self._own)
        self._is_captured = False
        """Whether the group's stream may belong to a capture that goes on."""
        self._in_graphs: list[Flight] = []
        """Captured operations whose arrays are kept, in order."""
        self._block: Block | None = None
        self._beginning: Flight | None = None
        self._companion: Companion | None = None
        self._is_own_doing = False
        """The program itself has ended the group, so that it need not hear of it."""
        self._watcher = own_watcher()

    @abstractmethod
    def told(self) -> None:
        """Note that the program hears of the failure that the group has ended with."""

    def _begin(self, op: Op, ready: Ready, timeout: float, async_op: bool) -> Work:
        # Python takes a microsecond for a few calls of functions, so that this is one.
        companion = self._companion
        if self._cause is not None or self._closed or (companion and companion.cause()):
            self._check_usable()
        turn = self._turn
        if not turn.acquire(blocking=False):
            self._await_turn(op.kind, timeout)
        try:
            in_block = self._block is not None
            if len(self._own.free) < 2:
                self._make_room(timeout)
            is_message, now = op.kind in _MESSAGES, time.monotonic()
            flight = Flight(
                op.kind,
                self._sequence + (not is_message),
                op.peer if is_message else None,
                is_message,
                has_started=False,
                timeout=timeout,
                began=now,
                next_look=now + self._look_every,
                frameworks=ready.frameworks,
                sender=ready.sender,
                is_blocking=not async_op and not in_block,
            )
            if self._recorder is not None:
                if is_message:
                    flight.noted = self._recorder.enter_message(op, async_op)
                else:
                    noting = op, flight.sequence, async_op, ready.measured
                    flight.noted = self._recorder.enter(*noting)
            self._beginning = flight  # watched, as NCCL may block
            if self._watcher.is_asleep:
                self._watcher.wake()
            try:
                (self._put_anywhere if ready.callers is None else self._put)(flight, ready)
            except BaseException as error:
                self._refuse(flight, error)
                raise
            finally:
                self._beginning = None
            self._sequence = flight.sequence
        finally:
            turn.release()
        if self._cause is not None:
            self._flights.fail(self._cause)
        work = CapturedWork(self, flight) if flight.is_captured else StreamWork(self, flight)
        if flight.is_blocking and (not flight.is_awaited or flight.failure or op.kind == "barrier"):
            self._finish(work, flight)
        return work

    def _await_turn(self, kind: str, timeout: float) -> None:
        """Wait until the other threads' operations, and blocks of them, are launched.

        The program may keep a block open for as long as it likes, or wait within it for this very
        operation. Raises CommTimeout then, or what the group has ended with meanwhile.
        """
        end = time.monotonic() + timeout
        while not self._turn.acquire(timeout=max(0.0, min(_SLICE, end - time.monotonic()))):
            self._check_usable()
            if time.monotonic() >= end:
                facts = kind, self._sequence + 1, timeout, (), _IN_OTHERS_BLOCK
                cause = self._end(FailureCause("CommTimeout", facts))
                self.told()
                raise cause.error()

    def _make_room(self, timeout: float) -> None:
        """Take back events of what is over. suspend(), which another thread may have called since
        run() looked, leaves none."""
        if self._is_suspended:
            self.resume(timeout)
        self._sweep()

    @contextmanager
    def _in_turn(self, kind: str, timeout: float) -> Iterator[None]:
        """Keep other threads' operations away within the block; see _await_turn()."""
        self._await_turn(kind, timeout)
        try:
            yield
        finally:
            self._turn.release()

    def _put_anywhere(self, flight: Flight, ready: Ready) -> None:
        """Put an operation on the group's stream, whichever device is current."""
        with self._own.current(ready.frameworks) as callers:
            self._put(flight, ready, callers)

    def _put(self, flight: Flight, ready: Ready, callers: Collection[int] = ()) -> None:
        own, stream, at = self._own, self._own.stream, self._own.handle
        callers = ready.callers or callers
        if len(own.free) < 2:
            own.create_events()
        flight.operands, flight.followed = ready.held, callers
        for handle in callers:
            error, status = self._captures.status_of(handle)
            if int(error) == self._captures.implicit:
                raise ValueError(_OF_DEFAULT_STREAM)
            if status != self._captures.none and not int(error):
                flight.is_captured = self._is_captured = True
            elif self._is_captured:
                self._check_not_captured()
            caller = own.callers.get(handle) or own.caller(handle)
            if flight.is_blocking and not flight.is_captured and len(callers) == 1:
                stream, at = caller, handle  # NCCL orders a communicator's work on several streams
                flight.be_on_callers_stream(handle)
            else:
                # An event that was recorded in a capture stands for a place in its graph.
                stream.wait(caller.record(None if flight.is_captured else own.arrival))
        if self._block is not None:
            self._block.append((flight, ready))
        elif flight.is_captured:
            self._capture(flight, ready)
        else:
            flight.start = stream.record(own.free.pop())
            ready.begin(*ready.arguments, stream=at)
            if ready.finish is not None:
                with own.taken(ready.operands) if at == own.handle else nullcontext():
                    ready.finish()
            flight.end = stream.record(own.free.pop())
            self._flights.append(flight)

    def _capture(self, flight: Flight, ready: Ready) -> None:
        """Put an operation on the group's stream, which is being captured."""
        own = self._own
        ready.begin(*ready.arguments, stream=own.handle)
        if ready.finish is not None:
            with own.taken(ready.operands):
                ready.finish()
        self._captured(flight)
        flight.end = own.stream.record()

    def _check_not_captured(self) -> None:
        """Raise ValueError if the group's stream belongs to a capture that goes on."""
        error, status = self._captures.status_of(self._own.handle)
        self._is_captured = status != self._captures.none and not int(error)
        if self._is_captured:
            raise ValueError(_IN_CAPTURE)

    def _captured(self, flight: Flight) -> None:
        flight.is_over = True
        self._in_graphs.append(flight)  # which keeps its arrays
        if flight.noted is not None:
            flight.noted.leave(False)

    def _refuse(self, flight: Flight, error: BaseException) -> None:
        """End the group and raise its failure, unless the error leaves the group alone."""
        noted = flight.noted
        if flight.start is not None and flight.end is None:
            self._own.free.append(flight.start)
        if isinstance(error, CommError | TypeError | ValueError) or not isinstance(
            error, Exception
        ):
            if noted is not None and self.failed:
                noted.leave(True)
            elif noted is not None:  # what is refused, as arguments are, has not begun
                noted.cancel()
            return
        cause = self.broke(flight, error)
        if noted is not None:
            noted.leave(True)
        self.told()
        raise cause.error() from error

    @contextmanager
    def coalescing(self, timeout: float = PATIENCE) -> Iterator[None]:
        """Launch the block's operations together when it ends.

        NCCL hears of them only then. Its own group would defer other communicators' operations in
        this thread, too, and an abort by another thread would free memory that its end needs.
        """
        self._await_turn("coalesce", LONGEST)
        try:  # operations of other threads come after the block
            if self._block is not None:  # a block within another is a part of it
                yield
                return
            if self._is_suspended:
                self.resume(timeout)
            self._block = []
            try:
                yield
            finally:
                block, self._block = self._block, None
                if block:
                    self._launch(block)
        finally:
            self._turn.release()

    def _launch(self, block: Block) -> None:
        """Launch what was handed over in a block."""
        flights = [flight for flight, _ in block]
        if len(self._own.free) < 2:
            self._sweep()
        self._beginning = flights[-1]
        if self._watcher.is_asleep:
            self._watcher.wake()
        try:
            self._check_usable()
            self._end_block(block)
        except Exception as error:
            cause = self.broke(Call("coalesce", self._sequence), error)
            self._flights.fail(cause, flights)
            self.told()
            raise cause.error() from error
        finally:
            self._beginning = None
        if self._cause is not None:
            self._flights.fail(self._cause)

    def _end_block(self, block: Block) -> None:
        own = self._own
        is_captured = any(flight.is_captured for flight, _ in block)
        with own.current({each for flight, _ in block for each in flight.frameworks}):
            if len(own.free) < 2:
                own.create_events()
            start = None if is_captured else own.stream.record(own.free.pop())
            with self._nccl.group():
                for _, ready in block:
                    ready.begin(*ready.arguments, stream=own.handle)
            for _, ready in block:
                if ready.finish is not None:
                    with own.taken(ready.operands):
                        ready.finish()
            end = own.stream.record(None if is_captured else own.free.pop())
        last = block[-1][0]
        for flight, _ in block:
            flight.start, flight.end, flight.shares_events = start, end, flight is not last
            if is_captured:
                self._captured(flight)
            else:
                self._flights.append(flight)

    def _sweep(self) -> None:
        """Release what the GPU has done, in whichever thread."""
        head = self._flights.head
        try:
            with self._captures.tolerated():
                self._flights.sweep(self._check_communicator)
        except Exception as error:
            self.broke(head or Call("coalesce", self._sequence), error)

    def _finish(self, work: Work, flight: Flight) -> None:
        try:
            work.wait()
        except CommError:
            raise
        except BaseException as error:  # Ctrl-C: the operation cannot be waited for again
            self._is_own_doing = True
            what = f"rank {self._rank} was interrupted in {flight.op} ({type(error).__name__})"
            self._end(FailureCause("CommAborted", (f"{what}. Make a new process group.",)))
            raise

    def is_over(self, flight: Flight) -> bool:
        """Return whether an operation is over, successfully or not."""
        try:
            with self._captures.tolerated():
                is_over = self._flights.is_over(flight, self._check_communicator)
        except Exception as error:
            self.broke(flight, error)
            return flight.is_over
        cause = None if is_over else self.ended()
        if cause is not None:
            self._flights.fail(cause, [flight])
        return flight.is_over

    def hold_back(self, flight: Flight) -> bool:
        """Make the current streams wait for an operation; return False if it is over."""
        with self._own.current(flight.frameworks) as callers:
            return self._flights.hold_back(flight, callers)

    def lead(self, flight: Flight) -> None:
        """Make the current streams wait for an operation that was captured with them."""
        with self._own.current(flight.frameworks) as callers:
            for handle in callers:
                if flight.end is not None:
                    self._own.caller(handle).wait(flight.end)
        if flight in self._in_graphs and set(flight.followed) <= set(callers) - {PER_THREAD}:
            place = self._in_graphs.index(flight) + 1
            kept = [each for each in self._in_graphs[:place] if not _has_graphs_memory(each)]
            self._in_graphs[:place] = kept

    def call_back(self, flight: Flight, callback: Callable[[], None]) -> None:
        """Call it when the operation is over; at once if that is so."""
        self._flights.call_back(flight, callback)


def _has_graphs_memory(flight: Flight) -> bool:
    """Return whether what is freed in the capture of the operation is used in its graph only."""
    return all(each.gives_graphs_memory for each in flight.frameworks)
