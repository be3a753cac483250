"""The native backend: C++ collectives over shared memory within a node and TCP between nodes."""

from __future__ import annotations

import mmap
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import numpy as np

from torsh_runtime.arrays import stage
from torsh_runtime.backends.base import Backend, BackendType, Reduce
from torsh_runtime.backends.failures import comm_error
from torsh_runtime.backends.library import _native
from torsh_runtime.backends.meeting import Meeting, Store, give_up, meet
from torsh_runtime.backends.settings import STRATEGIES, Settings
from torsh_runtime.backends.shared import Sharing
from torsh_runtime.backends.work import COMPLETED, CompletedWork, Work, in_seconds
from torsh_runtime.errors import BackendUnavailable, CommError, CommTimeout, ConfigError
from torsh_runtime.status import DTYPES, own_page

_BFLOAT16 = DTYPES.index("bfloat16")
_TAGS = (1 << 64) - 1


class NativeBackend(Backend):
    """One rank's end of a native group. Make it with `connect`."""

    type: ClassVar[BackendType] = BackendType.NATIVE

    def __init__(
        self, group: _native.Group, rank: int, local: Sequence[int], world_size: int
    ) -> None:
        """`local`: the ranks of this rank's node."""
        self._group = group
        self._rank = rank
        self._local = local
        self._world_size = world_size
        self._shared: list[mmap.mmap] = []

    @classmethod
    def connect(
        cls, store: Store, rank: int, world_size: int, timeout: float, name: str = ""
    ) -> NativeBackend:
        """Meet the other ranks through the store, whose keys must be fresh, and link up.

        name: the group's, the same on all its ranks and different from other groups' of the job.
        Raises CommTimeout naming the ranks that did not come within `timeout` seconds, PeerLost,
        ConfigError for an environment or tuning file that is wrong or differs from rank to rank,
        BackendUnavailable when the system refuses what a group needs.
        """
        deadline = time.monotonic() + timeout
        settings = _settings(store, rank)
        tuning = settings.tuning.tuning
        with meet(
            store,
            rank,
            world_size,
            timeout,
            segment_bytes=lambda ranks: _native.segment_bytes(ranks, tuning(ranks)),
            network=settings.network,
            terms=settings.terms,
            name=name,
        ) as meeting:
            local = next(node for node in meeting.nodes if rank in node)
            group = _group(meeting, local, world_size, settings, name)
        backend = cls(group, rank, local, world_size)
        group.meet(max(deadline - time.monotonic(), 0.001))
        return backend

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def failed(self) -> bool:
        return self._group.failed

    def all_reduce(self, array: object, op: Reduce, timeout: float, async_op: bool = False) -> Work:
        pending = self._group.all_reduce(array, op, timeout, async_op)
        return COMPLETED if pending is None else NativeWork(pending)

    def reduce(
        self, array: object, root: int, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        return _work(self._group.reduce(array, root, op, timeout, async_op))

    def broadcast(self, array: object, root: int, timeout: float, async_op: bool = False) -> Work:
        pending = self._group.broadcast(array, root, timeout, async_op)
        return COMPLETED if pending is None else NativeWork(pending)

    def all_gather(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        return _work(self._group.all_gather(output, array, timeout, async_op))

    def all_gather_list(
        self, outputs: Sequence[object], array: object, timeout: float, async_op: bool = False
    ) -> Work:
        return _work(self._group.all_gather_list(outputs, array, timeout, async_op))

    def gather(
        self,
        outputs: Sequence[object] | None,
        array: object,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        return _work(self._group.gather(outputs, array, root, timeout, async_op))

    def scatter(
        self,
        array: object,
        inputs: Sequence[object] | None,
        root: int,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        return _work(self._group.scatter(array, inputs, root, timeout, async_op))

    def reduce_scatter(
        self, output: object, array: object, op: Reduce, timeout: float, async_op: bool = False
    ) -> Work:
        return _work(self._group.reduce_scatter(output, array, op, timeout, async_op))

    def reduce_scatter_list(
        self,
        output: object,
        inputs: Sequence[object],
        op: Reduce,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        return _work(self._group.reduce_scatter_list(output, inputs, op, timeout, async_op))

    def all_to_all(
        self, output: object, array: object, timeout: float, async_op: bool = False
    ) -> Work:
        return _work(self._group.all_to_all(output, array, timeout, async_op))

    def all_to_all_list(
        self,
        outputs: Sequence[object],
        inputs: Sequence[object],
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        return _work(self._group.all_to_all_list(outputs, inputs, timeout, async_op))

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        return _message(self._group.send(array, dst, tag & _TAGS, timeout, async_op))

    def recv(
        self, array: object, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        if src is not None and src not in range(self._world_size):
            last = self._world_size - 1
            raise ValueError(f"src={src!r} is not a rank of the group (0 to {last})")
        peer = _native.ANY_SOURCE if src is None else src
        return _message(self._group.recv(array, peer, tag & _TAGS, timeout, async_op))

    def barrier(self, timeout: float, async_op: bool = False) -> Work:
        return _work(self._group.barrier(timeout, async_op))

    def shared_memory(self, num_bytes: int, timeout: float) -> memoryview:
        sharing = Sharing(self, self._local, num_bytes, timeout)
        try:
            memory = sharing.map()
        except (BackendUnavailable, CommError, ConfigError):
            raise  # and on all ranks
        except BaseException:
            self.abort()  # the others wait
            raise
        self._group.add_region(memory, sharing.stride, num_bytes, sharing.remaining())
        self._shared.append(memory)
        return memoryview(memory)[sharing.start : sharing.start + num_bytes]

    def abort(self) -> None:
        self._group.abort()

    def close(self) -> None:
        self._group.close()
        self._shared.clear()


class NativeWork(Work):
    """An operation that the group's own threads carry on."""

    def __init__(self, pending: _native.Pending) -> None:
        self._pending = pending

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        seconds = in_seconds(timeout)
        if not self._pending.wait(seconds):
            assert seconds is not None
            raise CommTimeout(
                "Work.wait", 0, seconds, (), "; the operation is still under way, wait again"
            )
        return True

    def done(self) -> bool:
        return self._pending.done()

    def exception(self) -> BaseException | None:
        if self._pending.done():
            try:
                self._pending.check()
            except CommError as error:
                return error
        return None

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        if self.done():
            callback(self)
            return
        threading.Thread(
            target=self._call_when_over, args=(callback,), name="torsh-callback", daemon=True
        ).start()

    def _call_when_over(self, callback: Callable[[Work], None]) -> None:
        with suppress(CommError):  # callback(self) can ask for it
            self._pending.wait(None)
        callback(self)

    @property
    def source(self) -> int | None:
        rank = self._pending.source()
        return None if rank == _native.ANY_SOURCE else rank


def stage_native(array: object, writable: bool) -> tuple[Any, Callable[[], None] | None]:
    """arrays.stage() for the bindings, which cannot see bfloat16 in a buffer."""
    copy, finish = stage(array, writable)
    if copy.dtype.name == "bfloat16":
        return _native.Typed(copy.view(np.uint16), _BFLOAT16), finish
    return copy, finish


def _settings(store: Store, rank: int) -> Settings:
    """This process's; the others are told if there is something wrong with them."""
    try:
        return Settings.from_environ(os.environ)
    except ConfigError as error:
        give_up(store, rank, error)
        raise


def _group(
    meeting: Meeting, local: Sequence[int], world_size: int, settings: Settings, name: str
) -> _native.Group:
    number = zlib.crc32(name.encode()) & 0x7FFFFFFF
    page = own_page()
    links = meeting.take_links()
    try:
        return _native.Group(
            rank=meeting.rank,
            nodes=meeting.nodes,
            segment=meeting.segment,
            tuning=settings.tuning.tuning(len(local)),
            pids=meeting.pids,
            neighbours=meeting.neighbours,
            links=[links.get(peer, ()) for peer in range(world_size)],
            heartbeat=settings.heartbeat,
            strategy=STRATEGIES.index(settings.strategy),
            limits=settings.tuning.limits(),
            record=page.next_record(number) if page is not None else None,
            number=number,
            stage=stage_native,
            failure=partial(comm_error, dict(zip(local, meeting.pids, strict=True))),
        )
    except (RuntimeError, ValueError) as error:  # no memory, no descriptors, an old kernel
        raise BackendUnavailable(
            f"the native backend on rank {meeting.rank}", f"The system refused: {error}"
        ) from error


def _work(pending: _native.Pending | None) -> Work:
    return COMPLETED if pending is None else NativeWork(pending)


def _message(pending: _native.Pending) -> Work:
    rank = pending.source()
    return NativeWork(pending) if rank == _native.ANY_SOURCE else CompletedWork(rank)
