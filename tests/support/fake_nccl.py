"""NCCL without a GPU, with nccl4py's names and signatures, on the devices of fake_cuda.

It checks what nccl4py and NCCL check, and what they don't: that all ranks make the same calls, that
what is read and written is still allocated, that handles are alive. Operations of one communicator
run in order; a message is over when it was received, and the first operation with a peer holds the
caller up until the peer begins its own.
"""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.fake_cuda import LEGACY, CUDAError, Device, Gpu, Queue, machine
from support.fake_nccl_ranks import Clique, Launch, NCCLError, Op
from support.fake_nccl_sums import OF_ML_DTYPES, SIZES, DataType

NcclDataType = DataType
_RESULTS = ("no error", "unhandled cuda error", "", "internal error", "", "invalid usage")


class NcclInvalid(Exception):
    """What nccl4py itself finds wrong with arguments."""


class NcclRedOp(IntEnum):
    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


SUM, PROD, MAX, MIN, AVG = NcclRedOp
release = (2, 28, 9)
"""The version of NCCL itself."""
thread = threading.local()


def group_start() -> None:
    thread.depth = getattr(thread, "depth", 0) + 1
    if thread.depth == 1:
        thread.waiting = []


def group_end(*, simulate: bool = False) -> None:
    if getattr(thread, "depth", 0) == 0:
        raise NCCLError("invalid usage: no group was begun")
    thread.depth -= 1
    if thread.depth == 0:
        launch_all(thread.waiting)


@contextmanager
def group() -> Iterator[None]:
    group_start()
    try:
        yield
    finally:
        group_end()


def launch_all(waiting: list[tuple[Communicator, Queue, Op]]) -> None:
    together: dict[Any, list[Op]] = defaultdict(list)
    for communicator, queue, op in waiting:
        communicator._deferred -= 1
        together[communicator, queue].append(op)
    for (communicator, queue), ops in together.items():
        communicator._launch(queue, ops)


class UniqueId:
    def __init__(self, value: bytes) -> None:
        self.as_bytes = value

    def __bytes__(self) -> bytes:
        return self.as_bytes

    @staticmethod
    def from_bytes(b: bytes) -> UniqueId:
        if len(b) != 128:
            raise ValueError("a unique id has 128 bytes")
        return UniqueId(bytes(b))


def get_unique_id(empty: bool = False) -> UniqueId:
    return UniqueId(secrets.token_bytes(128))


class CustomRedOp:
    def __init__(self, factor: Any, dtype: DataType) -> None:
        self.factor = factor
        self.dtype = dtype
        self.closed = False

    def close(self) -> None:
        self.closed = True


class RegisteredBufferHandle:
    """Memory that NCCL knows: it has to be allocated until it is closed."""

    def __init__(self, communicator: Communicator, address: int, num_bytes: int) -> None:
        self._communicator = communicator
        self._place = communicator._gpu, address, num_bytes
        self.is_valid = True
        self._check_memory()

    def close(self) -> None:
        if self.is_valid:
            self._check_memory()
            self.is_valid = False

    def _check_memory(self) -> None:
        machine().reuse()
        machine().memory(*self._place)  # notes a fault if it is free


class Communicator:
    def __init__(self, ptr: int | None = None) -> None:
        self._clique: Any = None
        self._resources: list[Any] = []

    @classmethod
    def init(
        cls, nranks: int, rank: int, unique_id: UniqueId, config: object = None
    ) -> Communicator:
        machine().check_no_capture()  # as it allocates memory
        made = cls()
        made._rank, made._gpu = rank, machine().current
        with machine().moved:
            clique = machine().cliques.setdefault(bytes(unique_id), Clique(machine(), nranks))
        clique.join(rank, nranks, made._gpu)
        made._clique = clique
        return made

    _rank: int
    _gpu: Gpu
    _deferred = 0
    """How many operations are in groups that threads have begun and not ended."""

    def _check_valid(self, operation: str = "use") -> Clique:
        if self._clique is None:
            raise NcclInvalid(f"Cannot {operation}: Communicator not initialized")
        clique: Clique = self._clique
        return clique

    @property
    def rank(self) -> int:
        self._check_valid()
        return self._rank

    @property
    def nranks(self) -> int:
        return self._check_valid().size

    @property
    def device(self) -> Any:
        self._check_valid()
        return Device(self._gpu.number)

    def get_async_error(self) -> int:
        clique = self._check_valid("get async error")
        if clique.suspended.get(self._rank):
            machine().faults.append("a suspended communicator is asked for errors")
        return clique.error

    def register_buffer(self, buffer: Any) -> RegisteredBufferHandle:
        self._check_valid("register_buffer")
        facts = buffer.__cuda_array_interface__
        made = RegisteredBufferHandle(self, facts["data"][0], facts["shape"][0])
        self._resources.append(made)
        return made

    def suspend(self, flags: int = 1) -> None:
        """Return when all ranks have called it, as NCCL's does."""
        self._check_valid("suspend")
        if release < (2, 29, 7):
            raise RuntimeError("function ncclCommSuspend is not found")
        self._change(True)

    def resume(self) -> None:
        self._check_valid("resume")
        self._change(False)

    def _change(self, to: bool) -> None:
        clique = self._check_valid()
        last = clique.last.get(self._rank)
        if last is not None and not last.done:
            machine().faults.append("a communicator is suspended or resumed under its operations")
        if not clique.all_ranks_become(self._rank, to):
            raise NCCLError("internal error: the communicator was aborted")

    def abort(self) -> None:
        if self._deferred:
            machine().faults.append("an abort frees what the end of a group of calls needs")
        self.close_all_resources()
        if self._clique is not None:
            clique, self._clique = self._clique, None
            clique.abort(self._rank)
            self._free_memory()

    def _free_memory(self) -> None:
        """cudaFree waits for all that the device has been given."""
        try:
            Device(self._gpu.number).sync()
        except CUDAError:
            machine().faults.append("an abort waits for what does not end")

    def destroy(self) -> None:
        self.close_all_resources()
        if self._clique is not None:
            machine().wait(self._clique.last.get(self._rank))
            self._clique = None

    def close_all_resources(self) -> None:
        for resource in self._resources:
            resource.close()
        self._resources.clear()

    def create_pre_mul_sum(self, scalar: Any, datatype: DataType | None = None) -> CustomRedOp:
        self._check_valid("create_pre_mul_sum")
        if isinstance(scalar, (int, float)):
            datatype = datatype or DataType.FLOAT64
            scalar = np.array([scalar], _numpy_dtype(datatype))
        if not isinstance(scalar, np.ndarray):
            raise NcclInvalid("scalar must be int, float, numpy.ndarray, or a device buffer")
        if scalar.size != 1:
            raise NcclInvalid("the scalar must have one element")
        assert datatype is not None, "not needed here: inferred from the scalar"
        if scalar.nbytes < SIZES[datatype]:
            machine().faults.append("NCCL reads beyond the end of a scalar")
        made = CustomRedOp(scalar.tobytes(), datatype)
        self._resources.append(made)
        return made

    def send(self, sendbuf: Any, peer: int, *, stream: Any = None) -> None:
        source = self._buffer(sendbuf)
        self._add("send", source, stream, source=source.address, root=self._peer(peer))

    def recv(self, recvbuf: Any, peer: int, *, stream: Any = None) -> None:
        target = self._buffer(recvbuf)
        self._add("recv", target, stream, target=target.address, root=self._peer(peer))

    def allreduce(
        self, sendbuf: Any, recvbuf: Any, op: Any, *, stream: Any = None, config: Any = None
    ) -> None:
        self.reduce(sendbuf, recvbuf, op, stream=stream)

    def reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        root: int | None = None,
        *,
        stream: Any = None,
        config: Any = None,
    ) -> None:
        source, address = self._buffer(sendbuf), 0
        if root in (None, self._rank):
            target = self._buffer(recvbuf)
            _check_alike(source, target, source.count)
            address = target.address
        kind = "allreduce" if root is None else "reduce"
        facts = {**self._reduction(op, source.dtype), "root": -1 if root is None else root}
        self._add(kind, source, stream, source=source.address, target=address, **facts)

    def broadcast(
        self, sendbuf: Any, recvbuf: Any, root: int, *, stream: Any = None, config: Any = None
    ) -> None:
        target, address = self._buffer(recvbuf), 0
        if root == self._rank:
            source = self._buffer(sendbuf)
            _check_alike(source, target, source.count)
            address = source.address
        places = {"source": address, "target": target.address}
        self._add("broadcast", target, stream, root=self._peer(root), **places)

    def allgather(
        self, sendbuf: Any, recvbuf: Any, *, stream: Any = None, config: Any = None
    ) -> None:
        source, target = self._buffer(sendbuf), self._buffer(recvbuf)
        _check_alike(source, target, source.count * self.nranks)
        places = {"source": source.address, "target": target.address}
        self._add("allgather", source, stream, **places)

    def reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, op: Any, *, stream: Any = None, config: Any = None
    ) -> None:
        source, target = self._buffer(sendbuf), self._buffer(recvbuf)
        part = source.count // self.nranks
        if part < 1:
            raise NcclInvalid("sendbuf must have at least nranks elements")
        _check_alike(source, target, part)
        places = {"source": source.address, "target": target.address}
        facts = self._reduction(op, source.dtype)
        self._add("reduce_scatter", source._replace(count=part), stream, **places, **facts)

    def alltoall(
        self, sendbuf: Any, recvbuf: Any, *, stream: Any = None, config: Any = None
    ) -> None:
        raise RuntimeError("function ncclAlltoAll is not found")  # it is not before NCCL 2.28

    def _peer(self, rank: int) -> int:
        if rank not in range(self.nranks):
            raise NCCLError(f"invalid argument: rank {rank} of {self.nranks}")
        return rank

    def _buffer(self, buffer: Any) -> Any:
        self._check_valid()
        found = _Buffer.of(buffer)
        if found.device != self._gpu.number:
            raise NcclInvalid(
                f"buffer is on device {found.device}, communicator on {self._gpu.number}"
            )
        return found

    def _reduction(self, op: Any, dtype: DataType) -> dict[str, Any]:
        """NCCL before 2.24 has no such dtypes, and refuses them on GPUs before compute capability
        9.0."""
        if "FLOAT8" in dtype.name and (release < (2, 24) or machine().capability < (9, 0)):
            raise NCCLError("invalid argument: FP8 reduction support begins with sm90")
        if not isinstance(op, CustomRedOp):
            return {"red_op": int(NcclRedOp(op))}
        if op.closed or op not in self._resources:
            raise RuntimeError("CustomRedOp has been closed and is no longer valid")
        if op.dtype is not dtype:
            raise NCCLError("invalid argument: the operator is one of another dtype")
        return {"red_op": 5, "factor": op.factor}

    def _add(self, kind: str, buffer: Any, stream: Any, **facts: Any) -> None:
        handle = stream if isinstance(stream, int) else (stream or _NULL).__cuda_stream__()[1]
        queue = machine().queue(handle, self._gpu)
        if queue.gpu is not self._gpu:
            raise NCCLError("unhandled cuda error: the stream is one of another device")
        op = Op(kind, self._rank, buffer.count, buffer.dtype, **facts)
        if getattr(thread, "depth", 0):
            self._deferred += 1
            thread.waiting.append((self, queue, op))
        else:
            self._launch(queue, [op])

    def _launch(self, queue: Queue, ops: list[Op]) -> None:
        clique = self._check_valid()
        ops = [op for op in ops if op.count]
        if queue.capture is not None:
            machine().put_node(queue, lambda other: self._launch(other, [*map(replace, ops)]))
            return
        if clique.suspended.get(self._rank):
            raise NCCLError("invalid usage: the communicator is suspended")
        clique.connect(self._rank, ops)
        launch = Launch(self._rank, ops)
        with machine().moved:
            before = clique.last.get(self._rank)
            for op in ops:
                op.launch = launch
                clique.enqueue(op)
            needs = [] if before is None else [before]
            launch.task = machine().put(queue, lambda: clique.run(launch), needs)
            clique.last[self._rank] = launch.task


def get_version() -> Any:
    return SimpleNamespace(libnccl=SimpleNamespace(version=SimpleNamespace(release=release)))


def get_error_string(nccl_result: int) -> str:
    return _RESULTS[int(nccl_result)]


_NULL = SimpleNamespace(__cuda_stream__=lambda: (0, LEGACY[0]))


class _Buffer(SimpleNamespace):
    """What nccl4py makes of an array."""

    def _replace(self, **facts: Any) -> _Buffer:
        return _Buffer(**{**vars(self), **facts})

    @classmethod
    def of(cls, buffer: Any) -> _Buffer:
        try:
            facts = buffer.__cuda_array_interface__
        except AttributeError:
            raise NcclInvalid(f"{type(buffer)} is no array of a device") from None
        if facts["strides"] is not None:
            raise NcclInvalid("nccl4py would take the wrong elements of a strided array")
        name = np.dtype(buffer.dtype).name
        own = {own: kind.name for kind, own in OF_ML_DTYPES.items()}
        name = own.get(name, name.upper().replace("BOOL", "UINT8"))
        if name not in DataType.__members__:
            raise NcclInvalid(f"dtype {buffer.dtype} has no NCCL equivalent")
        count = int(np.prod(facts["shape"]))
        where = {"address": facts["data"][0], "device": buffer.device.id}
        return cls(count=count, dtype=DataType[name], **where)


def _check_alike(source: Any, target: Any, least: int) -> None:
    if source.dtype is not target.dtype:
        raise NcclInvalid(f"Dtype mismatch: {source.dtype}, {target.dtype}")
    if target.count < least:
        raise NcclInvalid(f"recvbuf must have at least {least} elements, got {target.count}")


def _numpy_dtype(dtype: DataType) -> Any:
    """As without ml-dtypes."""
    if dtype is DataType.BFLOAT16:
        raise NcclInvalid("Cannot create numpy dtype 'bfloat16': ml-dtypes is not installed")
    return np.dtype(dtype.name.lower())
