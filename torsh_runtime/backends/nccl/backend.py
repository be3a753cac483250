"""The nccl backend: cupy arrays and torch CUDA tensors, by NVIDIA's bindings of NCCL (nccl4py).

Operations are put on a stream of the group's own, behind what the current stream of the arrays'
library has been given, and a call returns when they are there. `wait()`, and a call without
`async_op`, makes the current stream wait, not the processor; `wait(timeout)` and barriers wait on
the processor. A thread watches what is under way: for deadlines, errors and the other ranks.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.nccl import unreported
from torsh_runtime.backends.nccl.callbacks import look_soon
from torsh_runtime.backends.nccl.flights import Flight
from torsh_runtime.backends.nccl.launching import Companion
from torsh_runtime.backends.nccl.library import Communicator, Cuda, Nccl
from torsh_runtime.backends.nccl.suspending import NcclSuspending
from torsh_runtime.errors import CommError

_PAUSE = 0.002
"""Seconds between two looks of a thread that closes the group."""
_FAREWELL = 5.0
"""Seconds that closing waits for peers on the node to close, too, and for operations to end if an
exception ends the program."""
_ABORT = 0.25
"""Seconds that are waited for NCCL to give up."""
_TIMEOUTS_TO_START = 4
"""The timeouts that the GPU may take to come to an operation, counted from its call."""


class NcclBackend(NcclSuspending):
    """Carries out the operations of one rank on the device of its communicator.

    LateNcclBackend makes it when the first operation on GPUs comes. NCCL has no tags, no receiving
    from any rank, no bitwise operations and no products of complex numbers; these raise ValueError
    and TypeError. Narrow floats are rounded at every addition, and MIN and MAX may lose NaN. Sent
    arrays are not copied: the stream waits until they are received.
    """

    type = BackendType.NCCL

    def __init__(
        self, nccl: Nccl, cuda: Cuda, communicator: Communicator, news: FailureNotifications
    ) -> None:
        self._ends_process = unreported.ends_process()
        super().__init__(nccl, cuda, communicator, news)
        self._aborting: threading.Thread | None = None
        self._failing: threading.Thread | None = None
        self._unreported: FailureCause | None = None
        self._is_reading = False
        """The other ranks' notes are being read."""
        self._noticed: tuple[Flight, FailureCause] | None = None
        """What they say against waiting on for an operation."""
        self.looking = threading.RLock()
        unreported.look_at_exit(self)
        self._watcher.add(self)

    def accompany(self, companion: Companion) -> None:
        """Join a different backend in one group: when either has failed, the other ends, too."""
        self._companion = companion
        self._watcher.wake()

    def ended(self) -> FailureCause | None:
        companion = self._companion
        if companion is not None and not (self.failed or self._closed):
            cause = companion.cause()
            if cause is not None:
                self._end(cause)
        return super().ended()

    def end(self, cause: FailureCause) -> None:
        """End because another part of the group has failed."""
        self._end(cause)

    def end_apart(self, cause: FailureCause) -> None:
        """Do so in a thread of its own, unless the calling thread is just ending this part."""
        if not self.failed and threading.current_thread() is not self._failing:
            self._fail(self._end, cause)

    def abort(self) -> None:
        self._is_own_doing = True
        super().abort()
        self.told()

    @property
    def unreported(self) -> CommError | None:
        """Return the failure that the program has not heard of, though it has arbitrary numbers."""
        return None if self._unreported is None else self._unreported.error()

    def told(self) -> None:
        self._unreported = None

    def _check_usable(self) -> None:
        if self.ended() is not None:
            self.told()
        super()._check_usable()

    def _when_ended(self, cause: FailureCause) -> None:
        companion = self._companion  # which a thread that closes the group forgets
        if companion is not None:
            companion.end(cause)

    def close(self) -> None:
        self.ended()  # perhaps with its companion
        self._await_flights()
        super().close()
        error = self.unreported
        if error is not None:
            self.told()
            raise error

    def _await_flights(self) -> None:
        """Wait until the GPU has done what is under way, or the watcher has ended the group.

        A program that is ended by an exception does not wait for long.
        """
        is_broken_off = sys.exc_info()[0] is not None
        end = time.monotonic() + _FAREWELL if is_broken_off else math.inf
        head, late = None, math.inf
        while time.monotonic() < min(end, late) and not self.failed:
            if (flight := self._flights.head) is None:
                return
            if flight is not head:  # a fork has no watcher
                head = flight
                late = time.monotonic() + (_TIMEOUTS_TO_START + 1) * flight.timeout + _FAREWELL
            self._sweep()
            time.sleep(_PAUSE)

    @property
    def is_busy(self) -> bool:
        """Return whether something is under way that has to be watched."""
        is_over = self.failed or self._closed
        return not is_over and bool(self._beginning is not None or self._flights)

    @property
    def has_companion(self) -> bool:
        """Return whether another backend, which may fail at any time, forms one group with it."""
        return self._companion is not None and not (self.failed or self._closed)

    def watch(self) -> None:
        """Look after what is under way, in the thread that watches all groups.

        It asks no store, whose answer may not come: other groups have deadlines, too.
        """
        failing = self._failing
        if self._closed or self.failed or (failing is not None and failing.is_alive()):
            return
        beginning, head = self._beginning, self._flights.head
        try:
            companion = self._companion
            cause = None if companion is None else companion.cause()
            if cause is not None:
                self._fail(self._end, cause)
                return
            self._own.make_current()
            self._flights.sweep(self._check_communicator)
            head = self._flights.head
            if head is not None:
                self._flights.notice_start(head)
            if beginning is not None and beginning is self._beginning:
                # NCCL connects to a peer when it is first needed, and blocks meanwhile: for the
                # peers this rank has come to the operation.
                self._look_after(beginning, beginning.began + beginning.timeout, True)
            if head is not None:
                self._look_after(head, self._deadline(head), head.has_started)
        except Exception as error:
            self._fail(self.broke, head or Call("coalesce", self._sequence), error)

    def _deadline(self, head: Flight) -> float:
        if head.started is not None:
            return head.started + head.timeout
        return head.began + _TIMEOUTS_TO_START * head.timeout

    def _look_after(self, flight: Flight, deadline: float, has_come: bool) -> None:
        """End the group if an operation is late, or a peer that it needs has gone."""
        now = time.monotonic()
        if self.failed or (self._failing is not None and self._failing.is_alive()):
            return
        noticed = self._noticed
        if noticed is not None and noticed[0] is flight:
            self._fail(self._end, noticed[1])
        elif now >= deadline:
            flight.has_started = has_come
            self._fail(self.late, flight, flight.timeout)
        elif now >= flight.next_look and not self._is_reading:
            flight.next_look = now + self.look_every
            self._is_reading = True
            look_soon(partial(self._read_notes, flight, has_come))

    def _read_notes(self, flight: Flight, has_come: bool) -> None:
        """Have the watcher know what the other ranks' notes say against waiting on."""
        facts = flight.op, flight.sequence, flight.peer, flight.message
        call = Call(*facts, suspects=flight.suspects, has_started=has_come)
        try:
            cause = self._news.look(call)
            flight.suspects = call.suspects
            if cause is not None:
                self._noticed = flight, cause
                self._watcher.wake()
        finally:
            self._is_reading = False

    def late(self, call: Call, seconds: float) -> FailureCause:
        if call.has_started:
            return super().late(call, seconds)
        self.look(call)
        busy = (
            f" (this rank's GPU has not come to it {_TIMEOUTS_TO_START * seconds:g} s after the "
            f"call: work before it has not ended)"
        )
        facts = call.op, call.sequence, seconds, (self._rank,), busy
        return self._end(FailureCause("CommTimeout", facts))

    def _fail(self, end: Callable[..., FailureCause], *facts: object) -> None:
        """End the group in a thread of its own: that takes a while, and others are watched."""
        self._failing = threading.Thread(target=end, args=facts, daemon=True)
        self._failing.name = "torsh-nccl-failure"
        self._failing.start()

    def _halt(self) -> None:
        # NCCL tells its kernels to end, and then frees memory, for which CUDA waits until the GPU
        # has nothing to do: kernels of other groups, too, which this thread may have yet to abort.
        with suppress(Exception), self._captures.tolerated():
            self._own.make_current()
            self._flights.sweep(self._check_communicator)  # what is done has succeeded
        cause = self._cause
        if cause is not None and self._flights.fail(cause) and not self._is_own_doing:
            self._unreported = cause
        self._aborting = threading.Thread(
            target=self._give_up, name="torsh-nccl-abort", daemon=True
        )
        self._aborting.start()
        self._aborting.join(_ABORT)
        error = self.unreported
        # Calls of the program that end the group raise the error.
        is_apart = self._watcher.is_current or threading.current_thread() is self._failing
        if error is not None and is_apart and self._ends_process:
            unreported.end_process(error)

    def _give_up(self) -> None:
        with suppress(Exception):  # it is of no more use, whatever NCCL says
            self._communicator.abort()

    def _release(self) -> None:
        self._companion = None
        self._in_graphs.clear()
        self._watcher.remove(self)
        for thread in (self._failing, self._aborting):
            if thread is not None and thread is not threading.current_thread():
                thread.join(_FAREWELL)
        if not self.failed:
            # Waits for the peers on this node, whose kernels may read this rank's memory.
            last = threading.Thread(target=self._communicator.destroy, daemon=True)
            last.start()
            last.join(_FAREWELL)
        with suppress(Exception):
            self._own.stream.close()
