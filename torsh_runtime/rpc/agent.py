"""A worker's part in remote calls: what init_rpc() makes, and shutdown() ends."""

from __future__ import annotations

import itertools
import os
import pickle
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.network import listen
from torsh_runtime.errors import CommError, StoreError, TorshError
from torsh_runtime.rpc.directory import Directory, Worker, worker_here
from torsh_runtime.rpc.door import Door, Lobby
from torsh_runtime.rpc.failures import Account, CallRefused, CallTimeout, lost, rebuilt
from torsh_runtime.rpc.functions import name_of
from torsh_runtime.rpc.futures import CallFuture
from torsh_runtime.rpc.leaving import Roll
from torsh_runtime.rpc.links import ERROR, Frame, Links
from torsh_runtime.rpc.meeting import Meeting
from torsh_runtime.rpc.options import RpcBackendOptions, WorkerInfo, seconds
from torsh_runtime.rpc.pickling import pack, unpack
from torsh_runtime.rpc.references import References
from torsh_runtime.rpc.serving import Servers

UNDER_WAY_BYTES = 256 << 20
"""Of arguments to one worker that are not answered yet; who exceeds them waits."""
_HEARTBEAT = 30.0
_MAX_UNIX_QUEUE = 1024
_FAREWELL = 1.0
"""Seconds for answers that are still on their way when a worker leaves."""


class Agent:
    """All that belongs together. Any thread."""

    def __init__(self, name: str, meeting: Meeting, options: RpcBackendOptions) -> None:
        self.options = options
        self._meeting = meeting
        info = WorkerInfo(name, meeting.rank)
        self._lobby = Lobby(meeting.secret, meeting.rank)
        near, listeners = _near()
        far: list[tuple[str, int]] = []
        for address in meeting.network.addresses() if meeting.network else ():
            listeners.append(listen(address))
            far.append(listeners[-1].getsockname()[:2])
        self.own: Worker = worker_here(info, [near], far, self._lobby.token)
        self.directory = Directory(meeting.client, self.own, meeting.world_size)
        self._hub = _native.Hub(options.num_worker_threads, UNDER_WAY_BYTES, _HEARTBEAT)
        self.links = Links(self._hub, self.directory, self._lobby)
        self.references = References(self)
        self.servers = Servers(self, self._hub)
        self._numbers = itertools.count(1)
        self._ends: list[Callable[[int, str], None]] = [self._drop_references]
        self.roll = Roll(set(range(meeting.world_size or 0)))
        self._ends.append(lambda worker, _: self.roll.come(worker) and None)
        self._door = Door(listeners, self._lobby, self.links.enter)
        self.servers.start()

    def invoke(
        self,
        to: str | int | WorkerInfo,
        function: Any,
        args: Sequence[Any] | None,
        kwargs: Any,
        timeout: Any = None,
    ) -> CallFuture:
        """Begin a call. CallRefused, PeerLost, CallTimeout."""
        worker = self.directory.find(to)
        began = time.monotonic()
        deadline = self._deadline(began, timeout)
        kept: list[Any] = []
        try:
            with self.references.going_to(worker.info.id, kept):
                pickled, buffers = pack((function, tuple(args or ()), kwargs or {}))
        except TorshError:
            raise
        except Exception as error:
            raise _unpicklable(function, worker, error) from error
        call = self._begin(worker, function, pickled, buffers, began, deadline)
        future = CallFuture(self, call, worker, name_of(function), began, deadline)
        future.kept = kept or None
        return future

    def wait(self, call: Any, until: float) -> bool:
        """Until the call is over, or that moment; whether it is over."""
        is_over: bool = self._hub.wait(call, until, self.servers.context.is_serving)
        return is_over

    def announce(self, call: Any, then: Callable[[], None]) -> bool:
        """Have `then` called on a thread that serves when the call is over; False if it is."""
        return self.servers.announce(call, then)

    def outcome(self, call: Any, worker: Worker, function: str, allowed: float) -> Any:
        """The result of a call that is over, or whose deadline has passed; raises its error."""
        self._hub.forget(call)
        if not call.has_reply:
            if call.reason:
                raise lost(worker.info, worker.host, function, call.reason)
            raise CallTimeout(function, worker.info.name, worker.info.id, allowed)
        frame = Frame(*call.take_reply())
        link = self.links.of(call.connection)
        if link is None:
            raise lost(worker.info, worker.host, function, "its connection has ended")
        try:
            link.check(frame)
        except CommError as error:
            self._hub.end(call.connection, str(error))
            raise
        with self.references.coming_from(worker.info.id):
            value = unpack(frame.pickled, frame.buffers)
        if frame.kind == ERROR:
            raise rebuilt(Account(*value))
        return value

    def connected(self, to: WorkerInfo) -> None:
        """Make sure that there is a connection to the worker. PeerLost, CallTimeout."""
        worker = self.directory.find(to)
        self.links.to(worker, "a reference", self._deadline(time.monotonic(), None))

    def latest(self, deadline: float | None) -> float:
        """The deadline of a call that is being carried out, or one for it if it has none."""
        return time.monotonic() + self.options.rpc_timeout if deadline is None else deadline

    def when_ended(self, then: Callable[[int, str], None]) -> None:
        """Have then(worker's id, reason) called when the last connection to a worker has ended."""
        self._ends.append(then)

    def note_end(self, connection: int, reason: str) -> None:
        """A connection has ended."""
        link = self.links.ended(connection)
        if link is None or link.peer in self.links.peers():
            return
        for then in self._ends:
            then(link.peer, reason)

    @property
    def num_pending(self) -> int:
        """Calls of this worker's that are not answered yet."""
        return int(self._hub.pending)

    @property
    def num_serving(self) -> int:
        """Calls of others that are carried out here, or wait for it."""
        return int(self._hub.serving)

    def close(self) -> None:
        """Leave at once: calls that are under way fail with PeerLost, here and there."""
        self._door.close()
        self.references.close()
        self._hub.close(time.monotonic() + _FAREWELL)
        with suppress(StoreError):
            self.directory.leave()
        self._meeting.held.close()

    def _begin(
        self,
        worker: Worker,
        function: Any,
        pickled: bytes,
        buffers: list[Any],
        began: float,
        deadline: float,
    ) -> Any:
        name = name_of(function)
        number = next(self._numbers)
        while True:
            link = self.links.to(worker, name, deadline)
            try:
                call = link.call(number, pickled, buffers, deadline)
                if call is not None:
                    return call
                size = len(pickled) + sum(each.raw().nbytes for each in buffers)
                serving = self.servers.context.is_serving
                has_room = self._hub.wait_for_room(link.connection, size, deadline, serving)
            except _native.Ended as error:
                if self._was_old(link.connection):
                    continue
                raise lost(worker.info, worker.host, name, str(error)) from None
            if not has_room:
                detail = f": more than {UNDER_WAY_BYTES >> 20} MiB are under way to it"
                raise CallTimeout(name, worker.info.name, worker.info.id, deadline - began, detail)

    def _was_old(self, connection: int) -> bool:
        """Whether the connection had ended before the call; then another one is tried."""
        return self.links.ended(connection) is not None

    def _deadline(self, now: float, timeout: Any) -> float:
        """No later than that of the call that this thread carries out."""
        own = now + seconds(timeout, self.options.rpc_timeout)
        inherited = self.servers.context.deadline
        return own if inherited is None else min(own, inherited)

    def _drop_references(self, worker: int, _: str) -> None:
        self.references.drop_all_of(worker)


def _near() -> tuple[str, list[socket.socket]]:
    """An abstract socket for the workers of this node."""
    address = f"\0torsh-{os.getuid()}-rpc-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(_MAX_UNIX_QUEUE)
    return address, [listener]


def _unpicklable(function: Any, worker: Worker, error: Exception) -> Exception:
    kind = type(error) if isinstance(error, pickle.PicklingError | AttributeError) else TypeError
    return kind(
        f"the call of {name_of(function)} on {worker.info.name!r} cannot be pickled: {error}. Use "
        f"functions of modules that both sides import, or a name given to rpc.register()"
    )


_current: Agent | None = None


def current_agent() -> Agent:
    """This process's. CallRefused if it takes no part in calls."""
    if _current is None:
        raise CallRefused("this process takes no part in remote calls: call init_rpc() first")
    return _current


def has_agent() -> bool:
    return _current is not None


def set_agent(agent: Agent | None) -> None:
    global _current
    _current = agent


# A forked child is no worker: it may become one by init_rpc() of its own.
os.register_at_fork(after_in_child=lambda: set_agent(None))
