"""The gloo backend: PyTorch's ProcessGroupGloo, without torch.distributed's default group."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

import numpy as np

from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.library.coroutine_work import Request, Steps
from torsh_runtime.backends.library.failure_notifications import FailureNotifications
from torsh_runtime.backends.library.host import HostBackend
from torsh_runtime.backends.library.operands import (
    Array,
    FlatParts,
    distribute,
    equal_parts,
    joined,
    room_for,
)
from torsh_runtime.backends.library.reductions import Encoding, combine, encoding, narrowed
from torsh_runtime.backends.operation import Reduce
from torsh_runtime.errors import BackendUnavailable, CommTimeout, ConfigError
from torsh_runtime.store.client import StoreClient

EAGER_BYTES = 64 << 10
"""Messages to one rank are copied, and so complete at once, while at most this many bytes of them
have not been received."""
_FAREWELL = 5.0
"""Seconds that closing waits for messages to be received."""
_PATIENCE = timedelta(days=30)
"""A timeout for Gloo that never expires: deadlines are kept here."""
_LAST_TAG = (1 << 31) - 2
_HALTING_TAG = _LAST_TAG + 1
_KNOWN = ("int8", "uint8", "int32", "int64", "float32", "float64")
"""Dtypes that Gloo reduces the same way in all supported versions of torch."""
_INTERFACES = ("TORSH_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class GlooBackend(HostBackend):
    """Carries out the operations of one rank with Gloo, which trusts anyone who can reach its
    sockets.

    What Gloo cannot reduce is converted to something that it can, or exchanged and then reduced
    here in order of rank. Each message's Work has its own thread, because Gloo reports the end of a
    message only to a thread that waits for it.
    """

    type = BackendType.GLOO

    def __init__(
        self, torch: Any, group: Any, rank: int, world_size: int, news: FailureNotifications
    ) -> None:
        super().__init__(rank, world_size, news)
        self._torch = torch
        self._gloo = group
        self._unreceived: list[tuple[int, int, _Awaited]] = []

    @classmethod
    def connect(cls, store: StoreClient, rank: int, world_size: int, timeout: float) -> GlooBackend:
        """Connect to the other ranks through the store, whose keys must be fresh.

        The interface is that of TORSH_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, or the one of the host's
        name. Raises BackendUnavailable without torch, CommTimeout naming the ranks that did not
        come within `timeout` seconds.
        """
        began = time.monotonic()
        distributed = _load()
        news = FailureNotifications(store, rank, world_size, cls.type)
        news.meet(timeout)

        def left() -> float:
            return max(timeout - (time.monotonic() - began), 0.001)

        options = distributed.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=left())
        options._devices = [_device(distributed.ProcessGroupGloo)]
        adapter = _adapt(distributed.Store, store.scoped("gloo/"), left())
        try:
            group = distributed.ProcessGroupGloo(adapter, rank, world_size, options)
        except RuntimeError as error:
            raise CommTimeout("init_process_group", 0, timeout, (), f" ({error})") from error
        news.all_connected(left())
        return cls(import_module("torch"), group, rank, world_size, news)

    def _all_reduce(self, values: Array, op: Reduce) -> Steps:
        code = self._encoding(values, op)
        if code is None:
            room = np.empty(values.size * self._world_size, values.dtype)
            yield from self._all_gather(equal_parts("room", room, self._world_size), values)
            self._combine(room, op, values)
        elif values.size:
            wire = code.encode(values)
            yield self._begin_reduction("allreduce", wire, code)
            code.decode(wire, values)
        return None

    def _reduce(self, values: Array, root: int, op: Reduce) -> Steps:
        code = self._encoding(values, op)
        if code is None:
            copy = values.copy()
            yield from self._all_reduce(copy, op)
            if root == self._rank:
                values[...] = copy
        elif values.size:
            wire = code.encode(values)
            if code.in_place and root != self._rank:
                wire = wire.copy()  # Gloo adds up in there
            yield self._begin_reduction("reduce", wire, code, root)
            if root == self._rank:
                code.decode(wire, values)
        return None

    def _broadcast(self, values: Array, root: int) -> Steps:
        if values.size:
            yield self._begin_broadcast(values, root)
        return None

    def _all_gather(self, targets: FlatParts, source: Array) -> Steps:
        if targets.listed:
            targets.arrays[self._rank][...] = source
            ranked = [(part, rank) for rank, part in enumerate(targets.arrays) if part.size]
            yield from [self._begin_broadcast(part, rank) for part, rank in ranked]
        elif source.size:
            [room] = targets.arrays
            own = source.copy() if np.may_share_memory(source, room) else source
            ends = self._bytes(room), self._bytes(own)
            yield _Running(self._gloo._allgather_base(*ends, self._options("Allgather")))
        return None

    def _reduce_scatter(self, target: Array, sources: FlatParts, op: Reduce) -> Steps:
        room = np.empty(target.size * self._world_size, target.dtype)
        parts = equal_parts("room", room, self._world_size)
        yield from self._exchange(parts, sources)
        self._combine(room, op, target)
        return None

    def _exchange(self, targets: FlatParts, sources: FlatParts) -> Steps:
        dtype = (targets.arrays or sources.arrays)[0].dtype
        room, parts = room_for(targets, dtype), joined(sources, dtype)
        sizes = [[dtype.itemsize * size for size in end.sizes] for end in (targets, sources)]
        ends = self._bytes(room), self._bytes(parts)
        yield _Running(self._gloo.alltoall_base(*ends, *sizes, self._options("AllToAll")))
        distribute(room, targets)
        return None

    def _barrier(self) -> Steps:
        yield _Running(self._gloo.barrier(self._options("Barrier")))
        return None

    def _send(self, source: Array, dst: int, tag: int) -> Steps:
        ahead = self._unreceived_bytes(dst) + source.nbytes <= EAGER_BYTES
        data = self._bytes(source.copy() if ahead else source)
        work = self._gloo.send([data], dst, tag)
        awaited = _Awaited(work, data)
        if ahead:
            self._unreceived.append((dst, source.nbytes, awaited))
        else:
            yield awaited
        return None

    def _recv(self, target: Array, src: int | None, tag: int) -> Steps:
        room = self._bytes(target)
        if src is None:
            work = self._gloo.recv_anysource([room], tag)
        else:
            work = self._gloo.recv([room], src, tag)
        yield _Awaited(work, room)
        return src if src is not None else int(work._source_rank())

    @property
    def _last_tag(self) -> int:
        return _LAST_TAG

    def _halt(self) -> None:
        # A message that is given up makes Gloo close all connections, and so ends what the other
        # operations wait for, here and on the peers.
        if self._world_size > 1:
            room = self._bytes(np.empty(1, np.uint8))
            peer = (self._rank + 1) % self._world_size
            with suppress(RuntimeError):
                self._gloo.recv([room], peer, _HALTING_TAG).wait(timedelta(milliseconds=1))

    def _release(self) -> None:
        limit = time.monotonic() + (0 if self.failed else _FAREWELL)
        for _, _, awaited in self._unreceived:
            awaited.rest(max(0.0, limit - time.monotonic()), 0.0)
        if any(not awaited.over.is_set() for _, _, awaited in self._unreceived):
            self._halt()
        self._gloo = None

    def _unreceived_bytes(self, dst: int) -> int:
        """Return the bytes sent ahead to a rank and not received yet; forget received ones."""
        self._unreceived = [sent for sent in self._unreceived if not sent[2].over.is_set()]
        return sum(size for peer, size, _ in self._unreceived if peer == dst)

    def _encoding(self, values: Array, op: Reduce) -> Encoding | None:
        return narrowed(encoding(values.dtype, op, self._world_size), _KNOWN)

    def _combine(self, room: Array, op: Reduce, target: Array) -> None:
        parts = np.split(room, self._world_size)
        with np.errstate(all="ignore"):
            np.copyto(target, combine(parts, op, self._world_size), casting="unsafe")

    def _begin_reduction(self, name: str, wire: Array, code: Encoding, root: int = 0) -> Request:
        options = self._options("Allreduce" if name == "allreduce" else "Reduce")
        options.reduceOp = getattr(self._torch.distributed.ReduceOp, code.op.name)
        if name == "reduce":
            options.rootRank = root
        return _Running(getattr(self._gloo, name)([self._tensor(wire)], options))

    def _begin_broadcast(self, values: Array, root: int) -> Request:
        options = self._options("Broadcast")
        options.rootRank = root
        return _Running(self._gloo.broadcast([self._bytes(values)], options))

    def _options(self, name: str) -> Any:
        options = getattr(self._torch._C._distributed_c10d, f"{name}Options")()
        options.timeout = _PATIENCE
        return options

    def _bytes(self, array: Array) -> Any:
        return self._tensor(array.view(np.uint8))

    def _tensor(self, array: Array) -> Any:
        return self._torch.from_numpy(array if array.flags.writeable else array.copy())


class _Running:
    """A collective that Gloo's threads work on."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def test(self) -> bool:
        return bool(self._work.is_completed() and self._work.wait())

    def rest(self, seconds: float, waited: float) -> None:
        with suppress(RuntimeError):  # not complete; or failed, which a test tells
            self._work.wait(timedelta(milliseconds=max(1, int(seconds * 1000))))


class _Awaited:
    """A message, for which a thread waits."""

    def __init__(self, work: Any, tensor: Any) -> None:
        self._tensor = tensor  # Gloo reads and writes there until it is complete
        self._error: BaseException | None = None
        self.over = threading.Event()
        threading.Thread(target=self._wait, args=(work,), name="torsh-gloo", daemon=True).start()

    def _wait(self, work: Any) -> None:
        try:
            work.wait(_PATIENCE)
        except RuntimeError as error:
            self._error = error
        self.over.set()

    def test(self) -> bool:
        if self._error is not None:
            raise self._error
        return self.over.is_set()

    def rest(self, seconds: float, waited: float) -> None:
        self.over.wait(seconds)


def _load() -> Any:
    try:
        distributed: Any = import_module("torch.distributed")
    except ImportError as error:
        raise _unavailable(str(error)) from None
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise _unavailable("This torch was built without it")
    return distributed


def _unavailable(why: str) -> BackendUnavailable:
    return BackendUnavailable("the gloo backend", f"{why}. Install torch: `pip install torch`.")


def _device(gloo: Any) -> Any:
    names = next((os.environ[name] for name in _INTERFACES if os.environ.get(name)), "")
    if not names:
        return gloo.create_default_device()
    known = {name for _, name in socket.if_nameindex()}
    interface = next((name for name in names.split(",") if name in known), None)
    if interface is None:
        raise ConfigError(
            f"there is no network interface {names!r} here; there are {', '.join(sorted(known))}"
        )
    return gloo.create_device(interface=interface)


def _adapt(base: Any, store: StoreClient, timeout: float) -> Any:
    """Return the store behind the interface of torch's C++ stores."""

    class Adapter(base):  # type: ignore[misc]
        def set(self, key: str, value: bytes) -> None:
            store.put(key, value)

        def get(self, key: str) -> bytes:
            return store.wait([key], timeout)[key].value

        def wait(self, keys: Sequence[str], patience: timedelta | None = None) -> None:
            store.wait(keys, patience.total_seconds() if patience else timeout)

        def add(self, key: str, amount: int) -> int:
            return store.add(key, amount)

        def check(self, keys: Sequence[str]) -> bool:
            return all(store.get(key) is not None for key in keys)

        def delete_key(self, key: str) -> bool:
            return store.delete(key)

    return Adapter()
