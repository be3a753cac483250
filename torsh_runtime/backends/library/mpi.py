"""The mpi backend: whatever MPI library mpi4py was built with, or finds.

The processes are MPI's: started by mpiexec, srun or the like, which also set what torshrun's
environment would say. Every operation is MPI's non-blocking one, tested until its deadline.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgpack
import numpy as np

from torsh_runtime.arrays import is_known
from torsh_runtime.backends.base import BackendType, Envelope
from torsh_runtime.backends.library.coroutine_work import Steps
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.backends.library.host import HostBackend
from torsh_runtime.backends.library.operands import (
    Array,
    FlatParts,
    check_tag,
    distribute,
    joined,
    room_for,
)
from torsh_runtime.backends.library.reductions import Encoding, encoding, widened
from torsh_runtime.backends.operation import Op, Reduce, ReduceOp
from torsh_runtime.errors import BackendUnavailable
from torsh_runtime.store.client import StoreClient

EAGER_BYTES = 64 << 10
"""Messages to one rank are copied, and so complete at once, while at most this many bytes of them
have not been received."""
_BUSY = 0.001
"""Seconds of waiting before tests are made further apart."""
_LINGER = 5.0
"""Seconds that a rank which leaves gives the others to receive what it has sent ahead."""
_OPS = {
    ReduceOp.SUM: "SUM",
    ReduceOp.PRODUCT: "PROD",
    ReduceOp.MIN: "MIN",
    ReduceOp.MAX: "MAX",
    ReduceOp.BAND: "BAND",
    ReduceOp.BOR: "BOR",
    ReduceOp.BXOR: "BXOR",
}
_TYPES = {
    **{"bool": "BYTE", "float16": "UINT16_T", "bfloat16": "UINT16_T"},  # these are only copied
    **{f"int{bits}": f"INT{bits}_T" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}_T" for bits in (8, 16, 32, 64)},
    **{"float32": "FLOAT", "float64": "DOUBLE"},
    **{"complex64": "C_FLOAT_COMPLEX", "complex128": "C_DOUBLE_COMPLEX"},
}


class MpiBackend(HostBackend):
    """Carries out the operations of one rank on an MPI communicator of its own.

    MPI makes progress only while some thread of the process is in one of its calls: operations
    begun with `async_op`, and small messages sent before, move when their Work, or any other, is
    waited for or tested. Deadlines, aborts and peers that have left are reported through the store.
    """

    type = BackendType.MPI

    def __init__(self, mpi: Any, comm: Any, news: FailureNotifications) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size(), news)
        self._mpi = mpi
        self._comm = comm
        self._types: dict[np.dtype[Any], Any] = {}
        self._unreceived: list[_Pending] = []
        self._next_look = 0.0
        # MPI cannot be made to let go of an array, so while the communicator lives it keeps them.
        comm.Set_attr(mpi.Comm.Create_keyval(), (self._under_way, self._unreceived))

    @classmethod
    def connect(cls, store: StoreClient, rank: int, world_size: int, timeout: float) -> MpiBackend:
        """Make a communicator of the ranks that meet in the store, whose keys must be fresh.

        They may be any of MPI's world, in any order. Raises BackendUnavailable if there is no MPI
        or these processes are not all in one MPI world, CommTimeout naming the ranks that did not
        come within `timeout` seconds.
        """
        mpi = _load()
        world = mpi.COMM_WORLD
        news = FailureNotifications(store, rank, world_size, cls.type)
        tag = secrets.randbelow(32768)  # so that groups made at the same time do not mix
        own = msgpack.packb([world.Get_rank(), world.Get_size(), tag])
        places = [msgpack.unpackb(place) for place in news.meet(timeout, own)]
        _check_world(places, world_size)
        members = world.Get_group().Incl([place[0] for place in places])
        return cls(mpi, world.Create_group(members, places[0][2]), news)

    def _all_reduce(self, values: Array, op: Reduce) -> Steps:
        code = self._encoding(values, op)
        wire = code.encode(values)
        ends = self._mpi.IN_PLACE, self._spec(wire)
        yield _Pending(self._comm.Iallreduce(*ends, self._op(code)))
        code.decode(wire, values)
        return None

    def _reduce(self, values: Array, root: int, op: Reduce) -> Steps:
        code = self._encoding(values, op)
        wire = self._spec(code.encode(values))
        ends = (self._mpi.IN_PLACE, wire) if root == self._rank else (wire, None)
        yield _Pending(self._comm.Ireduce(*ends, self._op(code), root))
        if root == self._rank:
            code.decode(wire[0].view(code.wire), values)
        return None

    def _broadcast(self, values: Array, root: int) -> Steps:
        yield _Pending(self._comm.Ibcast(self._spec(values), root))
        return None

    def _all_gather(self, targets: FlatParts, source: Array) -> Steps:
        room = room_for(targets, source.dtype)
        own = self._mpi.IN_PLACE if np.may_share_memory(source, room) else self._spec(source)
        begin = self._comm.Iallgather if targets.counts is None else self._comm.Iallgatherv
        yield _Pending(begin(own, self._spec(room, targets.counts)))
        distribute(room, targets)
        return None

    def _reduce_scatter(self, target: Array, sources: FlatParts, op: Reduce) -> Steps:
        code, source = self._encoding(target, op), joined(sources, target.dtype)
        wire, room = code.encode(source), code.room(target, source)
        ends = self._spec(wire), self._spec(room)
        if sources.counts is None:
            yield _Pending(self._comm.Ireduce_scatter_block(*ends, self._op(code)))
        else:
            yield _Pending(self._comm.Ireduce_scatter(*ends, sources.counts, self._op(code)))
        code.decode(room, target)
        return None

    def _exchange(self, targets: FlatParts, sources: FlatParts) -> Steps:
        dtype = (targets.arrays or sources.arrays)[0].dtype
        room, parts = room_for(targets, dtype), joined(sources, dtype)
        if targets.listed or sources.listed:
            ends = self._spec(parts, sources.sizes), self._spec(room, targets.sizes)
            yield _Pending(self._comm.Ialltoallv(*ends))
        else:
            yield _Pending(self._comm.Ialltoall(self._spec(parts), self._spec(room)))
        distribute(room, targets)
        return None

    def _send(self, source: Array, dst: int, tag: int) -> Steps:
        if self._unreceived_bytes(dst) + source.nbytes <= EAGER_BYTES:
            request = self._comm.Isend(self._spec(source.copy()), dst, tag)
            self._unreceived.append(_Pending(request, dst, source.nbytes))
        else:
            yield _Pending(self._comm.Isend(self._spec(source), dst, tag))
        return None

    def _recv(self, target: Array, src: int | None, tag: int) -> Steps:
        source, status = self._mpi.ANY_SOURCE if src is None else src, self._mpi.Status()
        yield _Pending(self._comm.Irecv(self._spec(target), source, tag), status=status)
        came: int = status.Get_source()
        size = status.Get_count(self._type(target))
        if size != target.size:
            raise RuntimeError(f"rank {came} sent {size} elements; {target.size} were expected")
        return came

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        number = check_tag(tag, self._largest_tag)
        self._check_source(src)
        source, status = self._mpi.ANY_SOURCE if src is None else src, self._mpi.Status()
        found = _Probe(lambda: self._comm.Iprobe(source, number, status))
        if wait:
            self._message(Op("recv", peer=src), self._find(found), timeout, async_op=False)
        elif not self._finds(found, src):
            return None
        size = status.Get_count(self._mpi.BYTE)
        return Envelope(status.Get_source(), number, size)

    def _finds(self, found: _Probe, src: int | None) -> bool:
        """Return whether the message is there now; now and then, check that the peers are alive."""
        self._check_usable()
        if found.test():
            return True
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self.look_every
            self.look(Call("recv", self._sequence, src, True))
            self._check_usable()
        return False

    def _find(self, found: _Probe) -> Steps:
        yield found
        return None

    def _barrier(self) -> Steps:
        yield _Pending(self._comm.Ibarrier())
        return None

    def _halt(self) -> None:
        pass  # MPI cannot be stopped; the peers read the news

    def _flush(self) -> None:
        deadline = time.monotonic() + _LINGER
        try:
            while not self.failed and self._owes() and time.monotonic() < deadline:
                time.sleep(_BUSY)
        except RuntimeError as error:
            self._end(FailureCause("CommError", (f"mpi failed in closing the group: {error}",)))

    def _release(self) -> None:
        if not (self.failed or self._under_way or self._owes()):
            self._comm.Free()

    def _owes(self) -> bool:
        """Return whether something that was sent ahead has not gone out yet."""
        with self._turn:
            self._forget_received()
            return bool(self._unreceived)

    def _unreceived_bytes(self, dst: int) -> int:
        """Return the number of bytes sent ahead to a rank that have not gone out yet."""
        self._forget_received()
        return sum(sent.size for sent in self._unreceived if sent.peer == dst)

    def _forget_received(self) -> None:
        self._unreceived[:] = [sent for sent in self._unreceived if not sent.test()]

    @property
    def _last_tag(self) -> int:
        largest: int = self._mpi.COMM_WORLD.Get_attr(self._mpi.TAG_UB)
        return largest

    def _encoding(self, values: Array, op: Reduce) -> Encoding:
        code = encoding(values.dtype, op, self._world_size)
        if code.op is ReduceOp.SUM and code.wire.itemsize < 4:
            return widened(code)  # Open MPI's vector code saturates where integers wrap around
        return code

    def _op(self, code: Encoding) -> Any:
        return getattr(self._mpi, _OPS[code.op])

    def _type(self, array: Array) -> Any:
        kind = self._types.get(array.dtype)
        if kind is None:
            kind = self._types[array.dtype] = self._made_type(array.dtype)
        return kind

    def _made_type(self, dtype: np.dtype[Any]) -> Any:
        if is_known(dtype):
            return getattr(self._mpi, _TYPES[dtype.name])
        return self._mpi.BYTE.Create_contiguous(dtype.itemsize).Commit()

    def _spec(self, array: Array, counts: list[int] | None = None) -> list[Any]:
        data, kind = array.view(np.uint8), self._type(array)
        return [data, kind] if counts is None else [data, counts, kind]


class _Probe:
    """A message that is looked for."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look

    def test(self) -> bool:
        return self._look()

    def rest(self, seconds: float, waited: float) -> None:
        _rest(seconds, waited)


def _rest(seconds: float, waited: float) -> None:
    if waited < _BUSY:
        os.sched_yield()
    else:
        time.sleep(min(seconds, waited / 10, _BUSY))


class _Pending:
    """A request that MPI works on."""

    def __init__(self, request: Any, peer: int = -1, size: int = 0, status: Any = None) -> None:
        self.peer = peer
        self.size = size
        self._request = request
        self._status = status

    def test(self) -> bool:
        return bool(self._request.Test(self._status))

    def rest(self, seconds: float, waited: float) -> None:
        _rest(seconds, waited)


def _load() -> Any:
    try:
        return import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            "the mpi backend",
            f"{error}. Install mpi4py with `pip install mpi4py` and an MPI library, for "
            f"instance with `pip install mpich`, and start the job with its mpiexec.",
        ) from None


def _check_world(places: Sequence[tuple[int, int, int]], world_size: int) -> None:
    ranks, sizes = {place[0] for place in places}, {place[1] for place in places}
    if len(ranks) != world_size or len(sizes) != 1:
        raise BackendUnavailable(
            f"the mpi backend with {world_size} ranks",
            f"These processes are not in one MPI world (its size is {_listed(sizes)}): start them "
            f"with one mpiexec or srun, of the MPI library that mpi4py uses.",
        )


def _listed(sizes: set[int]) -> str:
    return " or ".join(map(str, sorted(sizes)))
