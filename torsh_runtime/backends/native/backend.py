"""The native backend: C++ collectives over shared memory within a node and TCP between nodes."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import Backend, BackendType, Envelope, Facts, MeetingStore
from torsh_runtime.backends.bootstrap_store import post_abort, read_abort_reason
from torsh_runtime.backends.native.bootstrap import Bootstrap, bootstrap
from torsh_runtime.backends.native.callbacks import Callbacks
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.making import (
    Node,
    abandon,
    arrays_of,
    group_of,
    mapped,
    peers_of,
    pool_of,
    settings_of,
)
from torsh_runtime.backends.native.settings import Settings
from torsh_runtime.backends.native.shared_buffers import SharedBuffers
from torsh_runtime.backends.native.subgroups import meet_in_memory
from torsh_runtime.backends.native.work import Caught, NativeWork
from torsh_runtime.backends.operation import COLLECTIVES, Op
from torsh_runtime.backends.recorder import note_title
from torsh_runtime.backends.spares import Buffer, Spares
from torsh_runtime.backends.work import CompletedWork, Work
from torsh_runtime.errors import (
    BackendUnavailable,
    CommAborted,
    CommError,
    ConfigError,
    PeerLost,
)

_TAGS = (1 << 64) - 1


class NativeBackend(Backend):
    """Carries out the operations of one rank of a native group; created by `connect`."""

    type = BackendType.NATIVE

    def __init__(
        self,
        group: _native.Group,
        callbacks: Callbacks,
        rank: int,
        world_size: int,
        node: Node,
        settings: Settings,
        arrays: _native.SharedArrays | None = None,
    ) -> None:
        """Wrap the compiled group.

        `callbacks` are the group's; `arrays` are ended together with the group.
        """
        super().__init__(rank, world_size)
        self._group = group
        self._node = node
        self._settings = settings
        self._shared: list[mmap.mmap] = []
        self._spares: Spares | None = None
        self._arrays = arrays
        self._callbacks = callbacks
        for operation in (*COLLECTIVES, "all_reduce_coalesced"):
            setattr(self, operation, getattr(group, operation))  # callers reach the core at once

    @classmethod
    def connect(
        cls,
        store: MeetingStore,
        rank: int,
        world_size: int,
        timeout: float,
        name: str = "",
        share_arrays: bool = False,
        subgroups: bool = False,
        strategy: str | None = None,
    ) -> NativeBackend:
        """Connect to the other ranks through the store, whose keys must be fresh.

        name: the group's, the same on all its ranks and different from other groups' of the job.
        share_arrays: until it is closed, have numpy put large arrays where the ranks of the node
            reach them, unless TORSH_SHARE_ARRAYS is 0 or another group has already.
        subgroups: keep room for further groups of its ranks.
        strategy: one of STRATEGIES; None: what TORSH_ALGORITHM says.
        Raises CommTimeout naming the ranks that did not come within `timeout` seconds, PeerLost,
        ConfigError for an environment or tuning file that is wrong or differs from rank to rank,
        BackendUnavailable when the system refuses what a group needs.
        """
        deadline = time.monotonic() + timeout
        callbacks = Callbacks()
        settings = settings_of(store, rank).with_strategy(strategy)
        share_arrays = share_arrays and settings.share_arrays
        with bootstrap(
            store,
            rank,
            world_size,
            timeout,
            segment_sizes=lambda ranks: settings.node_file(ranks).sizes(share_arrays, subgroups),
            network=settings.network,
            terms=settings.terms,
            name=name,
        ) as meeting:
            local = next(node for node in meeting.nodes if rank in node)
            file = settings.node_file(len(local))
            try:
                memory = mapped(meeting, file)
                pool = pool_of(meeting, local, file) if subgroups else None
                peers = peers_of(meeting)
                group = group_of(meeting, memory, world_size, settings, name, callbacks, peers)
                own = arrays_of(meeting, local, file) if share_arrays else None
            except BaseException as error:
                abandon(store, meeting, local, error)
                raise
        places = range(len(local))
        node = Node(local, meeting.pids, meeting.neighbours, pool, places, peers, name)
        made = cls(group, callbacks, rank, world_size, node, settings, own)
        return made._connected(store, deadline)

    def subgroup(
        self, store: MeetingStore, name: str, ranks: Sequence[int], timeout: float
    ) -> Backend | None:
        """Return this rank's backend of a group of some ranks, as Backend.subgroup describes.

        It has the settings of this group.
        """
        pool, local = self._node.pool, self._node.ranks
        if pool is None or not {*ranks} <= {*local}:
            return None
        deadline = time.monotonic() + timeout
        rank, found = ranks.index(self._rank), [local.index(each) for each in ranks]
        places = [self._node.places[each] for each in found]
        num_bytes = self._settings.segment_bytes(len(ranks))
        memory = meet_in_memory(pool, store, name, rank, places, num_bytes, timeout)
        if memory is None:
            return None
        try:
            pids = [self._node.pids[each] for each in found]
            numbers = [self._node.peers.numbers[each] for each in ranks]
            met = Bootstrap(rank, [[*range(len(ranks))]], pids, self._node.neighbours, -1, numbers)
            peers, callbacks = peers_of(met), Callbacks()
            local = range(len(ranks))
            node = Node(local, pids, met.neighbours, pool, places, peers, name)
            group = group_of(met, memory, len(ranks), self._settings, name, callbacks, peers)
            made = NativeBackend(group, callbacks, rank, len(ranks), node, self._settings)
        except BaseException as error:
            _native.abandon(memory, rank, len(ranks), rank)
            post_abort(store, rank, error)
            raise
        return made._connected(store, deadline, self._group.has_cross_memory)

    def _connected(
        self, store: MeetingStore, deadline: float, known_cross_memory: bool | None = None
    ) -> NativeBackend:
        """Return this backend once all ranks are there."""
        try:
            self._group.handshake(max(deadline - time.monotonic(), 0.001), known_cross_memory)
        except BaseException as error:
            self.close()
            if isinstance(error, CommAborted | PeerLost):
                read_abort_reason(store, self._rank, self.type)
            raise
        return self

    def take_from(self, spares: Spares) -> None:
        self._spares = spares

    def name_ranks(self, names: Sequence[str], axis: str) -> None:
        self._node.peers.names, self._node.peers.axis = names, axis

    def note_title(self, title: str) -> None:
        note_title(self._node.name, title)

    @property
    def job_ranks(self) -> Sequence[int]:
        return self._node.peers.numbers

    @property
    def failed(self) -> bool:
        return self._group.failed

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        return op.begin(self, timeout, async_op)

    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self._message(self._group.send(array, dst, tag & _TAGS, timeout, async_op))

    def recv(
        self,
        array: object,
        src: int | None,
        tag: int | None,
        timeout: float,
        async_op: bool = False,
    ) -> Work:
        peer = self._peer(src)
        if tag is None:  # the Work is asked for it
            pending = self._group.recv(array, peer, None, timeout, async_op)
            return NativeWork(pending, self._callbacks)
        return self._message(self._group.recv(array, peer, tag & _TAGS, timeout, async_op))

    def probe(
        self, src: int | None, tag: int | None, timeout: float, wait: bool = True
    ) -> Envelope | None:
        number = None if tag is None else tag & _TAGS
        pending = self._group.probe(self._peer(src), number, timeout, not wait)
        return None if pending is None else NativeWork(pending, self._callbacks).envelope

    def send_object(
        self, content: object, dst: int, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        return self._message(self._group.send_object(content, dst, tag, timeout, async_op))

    def recv_object(
        self, src: int | None, tag: int, timeout: float, async_op: bool = False
    ) -> Work:
        pending = self._group.take_object(self._peer(src), tag, timeout, async_op)
        return NativeWork(pending, self._callbacks)

    @property
    def facts(self) -> Facts:
        is_in_node = len(self._node.ranks) == self._world_size
        return Facts(is_in_node, self._group.held_bytes)

    def all_come(self, array: object) -> bool:
        return self._group.all_come()

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        if not async_op:
            return super().in_order(call)
        caught = Caught(call)
        return NativeWork(self._group.run(caught), self._callbacks, caught)

    def _peer(self, src: int | None) -> int:
        if src is not None and src not in range(self._world_size):
            last = self._world_size - 1
            raise ValueError(f"src={src!r} is not a rank of the group (0 to {last})")
        return _native.ANY_SOURCE if src is None else src

    def _message(self, pending: _native.Pending) -> Work:
        rank = pending.source()
        if rank == _native.ANY_SOURCE:
            return NativeWork(pending, self._callbacks)
        return CompletedWork(rank)

    def shared_memory(self, num_bytes: int, timeout: float) -> NDArray[np.uint8]:
        sharing = SharedBuffers(self, self._node.ranks, num_bytes, timeout, self._spares)
        buffer = self._map(sharing)
        self._group.add_region(buffer.memory, sharing.stride, num_bytes, sharing.remaining())
        self._shared.append(buffer.memory)
        if self._spares is None:
            buffer.close_file()
        return (self._spares or Spares()).part(buffer)

    def common_memory(self, num_bytes: int, timeout: float) -> memoryview | None:
        if not self.facts.is_in_node:
            return None
        each = -(-num_bytes // self.world_size)
        buffer = self._map(SharedBuffers(self, self._node.ranks, each, timeout))
        return memoryview(buffer.memory)[:num_bytes]

    def _map(self, sharing: SharedBuffers) -> Buffer:
        try:
            return sharing.map()
        except (BackendUnavailable, CommError, ConfigError):
            raise  # and on all ranks
        except BaseException:
            self.abort()  # the others wait
            raise

    def suspend(self, timeout: float) -> None:
        super().suspend(timeout)
        if self._spares is not None:
            self._spares.forget()

    def abort(self) -> None:
        self._group.abort()

    def close(self) -> None:
        self._group.close()
        self._shared.clear()
        if self._arrays is not None:
            self._arrays.end()
