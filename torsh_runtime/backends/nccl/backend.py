"""The nccl backend: cupy arrays and torch CUDA tensors, by NVIDIA's bindings of NCCL (nccl4py).

Operations are put on a stream of the group's own, behind what the current stream of the arrays'
library has been given, and a call returns when they are there. `wait()`, and a call without
`async_op`, makes the current stream wait, not the processor; `wait(timeout)` and barriers wait on
the processor. A thread watches what is under way: for deadlines, errors and the other ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.library.coroutine_work import Steps
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.nccl.connecting import Place, Wait, communicator
from torsh_runtime.backends.nccl.library import Communicator, Cuda, Nccl
from torsh_runtime.backends.nccl.loading import load
from torsh_runtime.backends.nccl.operations import NcclOperations
from torsh_runtime.backends.nccl.streams import Launch
from torsh_runtime.backends.work import Work
from torsh_runtime.store.client import StoreClient

_LOOK_AROUND = 0.05
"""Seconds between two looks of the watching thread while something is under way."""
_LOOK_AT_COMPANION = 1.0
"""Seconds between two looks whether another backend of the group has failed, at other times."""
_PAUSE = 0.002
"""Seconds between two looks of a thread that closes the group."""
_FAREWELL = 5.0
"""Seconds that closing waits for operations to end and for peers on the node to close, too."""
_ABORT = 0.25
"""Seconds that are waited for NCCL to give up."""


@dataclass(slots=True)
class _Beginning:
    """An operation that is being handed to NCCL."""

    call: Call
    timeout: float
    deadline: float
    next_look: float
    """The time to look at the other ranks' notes again, in seconds of time.monotonic()."""


class Companion(Protocol):
    """Represents a different backend that forms one group with this one."""

    def cause(self) -> FailureCause | None:
        """Return why it has failed, or None if it has not."""

    def end(self, cause: FailureCause) -> None:
        """End it, because this one has failed."""


class NcclBackend(NcclOperations):
    """Carries out the operations of one rank on the device that was current when it connected.

    NCCL has no tags, no receiving from any rank, no bitwise operations and no products of complex
    numbers; these raise ValueError and TypeError. Narrow floats are rounded at every addition, and
    MIN and MAX may lose NaN. Sent arrays are not copied: the stream waits until they are received.
    """

    type = BackendType.NCCL

    def __init__(
        self, nccl: Nccl, cuda: Cuda, communicator: Communicator, news: FailureNotifications
    ) -> None:
        super().__init__(nccl, cuda, communicator, news)
        self._companion: Companion | None = None
        self._beginning: _Beginning | None = None
        self._aborting: threading.Thread | None = None
        self._busy = threading.Event()
        self._leaving = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="torsh-nccl", daemon=True)
        self._watcher.start()

    @classmethod
    def connect(cls, store: StoreClient, rank: int, world_size: int, timeout: float) -> NcclBackend:
        """Make a communicator with the ranks that meet in the store, whose keys must be fresh.

        Each rank needs a device of its own, which must be the current one of this thread. Raises
        BackendUnavailable without CUDA or nccl4py, CommTimeout naming the ranks that did not come
        within `timeout` seconds, CommError if NCCL fails.
        """
        deadline = time.monotonic() + timeout
        nccl, cuda, device = load(None)
        news = FailureNotifications(store, rank, world_size, cls.type)
        news.meet(timeout)
        wait = Wait(Call("init_process_group", 0), deadline - time.monotonic(), lambda: None)
        place = Place(store, rank, range(world_size))
        return communicator(place, nccl, wait, device, lambda made: cls(nccl, cuda, made, news))

    def accompany(self, companion: Companion) -> None:
        """Join a different backend in one group: when either has failed, the other ends, too."""
        self._companion = companion
        self._busy.set()

    def ended(self) -> FailureCause | None:
        companion = self._companion
        if companion is not None and not (self.failed or self._closed):
            cause = companion.cause()
            if cause is not None:
                self._end(cause)
        return super().ended()

    def _when_ended(self, cause: FailureCause) -> None:
        companion = self._companion  # which a thread that closes the group forgets
        if companion is not None:
            companion.end(cause)

    @contextmanager
    def coalescing(self) -> Iterator[None]:
        launch = self._together = Launch(launched=False)
        self._nccl.group_start()
        try:
            yield
        finally:
            self._together = None
            try:
                self._nccl.group_end()
            except Exception as error:
                raise self.broke(Call("coalesce", self._sequence), error).error() from error
            finally:
                launch.launched = True
                self.get_on()

    def close(self) -> None:
        limit = time.monotonic() + _FAREWELL
        self.ended()  # perhaps with its companion
        self.get_on()
        while self._under_way and not self.failed and time.monotonic() < limit:
            time.sleep(_PAUSE)
            self.get_on()
        super().close()

    def _begin(self, call: Call, steps: Steps, timeout: float) -> Work:
        now = time.monotonic()
        self._beginning = _Beginning(call, timeout, now + timeout, now + self.look_every)
        self._busy.set()
        try:
            work = super()._begin(call, steps, timeout)
        finally:
            self._beginning = None
        work.done()  # from what was handed over to what is on the stream
        return work

    def _result(self, work: Work, async_op: bool) -> Work:
        return work if self._together is not None else super()._result(work, async_op)

    def _watch(self) -> None:
        self._cuda.Device(self._device).set_current()
        while not (self._closed or self.failed):
            self._busy.wait(None if self._companion is None else _LOOK_AT_COMPANION)
            self._busy.clear()
            self.ended()
            while not (self._closed or self.failed) and (self._under_way or self._beginning):
                self._leaving.wait(_LOOK_AROUND)
                self._check_beginning()
                self.get_on()

    def _check_beginning(self) -> None:
        """End the group if an operation that is connecting to a peer is late or the peer has gone.

        NCCL connects to a peer when it is first needed, and blocks meanwhile, so that only this
        thread can notice that.
        """
        beginning, now = self._beginning, time.monotonic()
        if beginning is None or self.ended() is not None:
            return
        if now > beginning.deadline:
            self.late(beginning.call, beginning.timeout)
        elif now > beginning.next_look:
            beginning.next_look = now + self.look_every
            self.look(beginning.call)

    def _halt(self) -> None:
        # NCCL tells its kernels to end, and then frees memory, for which CUDA waits until the GPU
        # has nothing to do: kernels of other groups, too, which this thread may have yet to abort.
        self._aborting = threading.Thread(
            target=self._give_up, name="torsh-nccl-abort", daemon=True
        )
        self._aborting.start()
        self._aborting.join(_ABORT)

    def _give_up(self) -> None:
        with suppress(Exception):  # it is of no more use, whatever NCCL says
            self._communicator.abort()

    def _release(self) -> None:
        self._companion = None
        self._leaving.set()
        self._busy.set()
        if threading.current_thread() is not self._watcher:
            self._watcher.join(_FAREWELL)
        if self._aborting is not None:
            self._aborting.join(_FAREWELL)
        if not self.failed:
            # Waits for the peers on this node, whose kernels may read this rank's memory.
            last = threading.Thread(target=self._communicator.destroy, daemon=True)
            last.start()
            last.join(_FAREWELL)
        with suppress(Exception):
            self._own.stream.close()
