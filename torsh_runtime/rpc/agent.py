"""A worker's part in remote calls: what init_rpc() makes, and shutdown() ends."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.network import listen
from torsh_runtime.errors import ConfigError, PeerLost, StoreError, TorshError
from torsh_runtime.rpc.bootstrap import Bootstrap
from torsh_runtime.rpc.connections import PeerConnection, PeerConnections
from torsh_runtime.rpc.connector import Connector, PendingConnections, Unreachable
from torsh_runtime.rpc.directory import Directory, Worker, worker_here
from torsh_runtime.rpc.failures import Account, CallRefused, CallTimeout, lost, rebuilt
from torsh_runtime.rpc.functions import name_of
from torsh_runtime.rpc.futures import Begun, CallFuture
from torsh_runtime.rpc.leaving import Roll
from torsh_runtime.rpc.options import UNSET_RPC_TIMEOUT, RpcBackendOptions, WorkerInfo, seconds
from torsh_runtime.rpc.pickling import unpack
from torsh_runtime.rpc.references import References
from torsh_runtime.rpc.serving import Servers

if TYPE_CHECKING:
    from torsh_runtime.rpc.publishing.publications import Publications

UNDER_WAY_BYTES = 256 << 20
"""The largest number of bytes in the arguments of calls that a worker has not begun yet. A caller
that would exceed it waits."""
_HEARTBEAT = 30.0
_MAX_UNIX_QUEUE = 1024
_ATTEMPT_SECONDS = 5.0
_FAREWELL = 1.0
"""Seconds for answers that are still on their way when a worker leaves."""


class Agent:
    """Holds all parts of a worker's side of remote calls. Its methods may be called from any
    thread."""

    def __init__(self, name: str, meeting: Bootstrap, options: RpcBackendOptions) -> None:
        self.options = options
        self._meeting = meeting
        info = WorkerInfo(name, meeting.rank)
        self._lobby = PendingConnections(meeting.secret, meeting.rank)
        near, listeners = _near()
        far: list[tuple[str, int]] = []
        for address in meeting.network.addresses() if meeting.network else ():
            listeners.append(listen(address))
            far.append(listeners[-1].getsockname()[:2])
        self.own: Worker = worker_here(info, [near], far, self._lobby.token)
        self.directory = Directory(meeting.client, self.own, meeting.world_size)
        self._hub = _native.Hub(options.num_worker_threads, UNDER_WAY_BYTES, _HEARTBEAT)
        self.links = PeerConnections(self._hub, self.directory, self._lobby)
        self.references = References(self)
        self.servers = Servers(self, self._hub)
        self.roll = Roll(set(range(meeting.world_size or 0)))
        self.gone: set[int] = set()
        """Workers whose last connection has ended."""
        self._ends: list[Callable[[int, str], object]] = [
            lambda worker, _: self.references.drop_all_of(worker),
            lambda worker, _: self.roll.come(worker),
        ]
        self._closing = threading.Lock()
        self._is_leaving = self._is_closed = False
        self._publishing = threading.Lock()
        self._publications: Publications | None = None
        self._door = Connector(listeners, self._lobby, self.links.enter)
        self.servers.start()

    def invoke(
        self,
        to: str | int | WorkerInfo,
        function: Any,
        args: Sequence[Any] | None,
        kwargs: Any,
        timeout: Any = None,
        shown: str = "",
    ) -> CallFuture:
        """Begin a call and return its future. `shown` is what errors call it, if not by the
        function's name. Raises CallRefused, PeerLost or CallTimeout."""
        begun, kept = self._begun(to, function, args, kwargs, timeout)
        return CallFuture(self, begun._replace(function=shown) if shown else begun, kept)

    def call(
        self,
        to: str | int | WorkerInfo,
        function: Any,
        args: Sequence[Any] | None,
        kwargs: Any,
        timeout: Any = None,
    ) -> Any:
        """Make a call, wait for its result and return it. Raises as invoke() does, or the call's
        error."""
        begun, kept = self._begun(to, function, args, kwargs, timeout)
        self.wait(begun.call, begun.deadline)
        result = self.outcome(begun)
        del kept
        return result

    def packed(
        self,
        to: WorkerInfo,
        function: Any,
        args: Sequence[Any] | None,
        kwargs: Any,
        kept: list[Any],
    ) -> tuple[bytes, list[Any]]:
        """Return a call as a pickle for that worker, and the buffers beside it. Objects that must
        live until the call is over are appended to `kept`. Raises TypeError, or what pickle raises,
        if the call cannot be pickled."""
        if not (args is None or isinstance(args, tuple | list)):
            raise TypeError(f"args must be a tuple or a list, not {type(args).__name__}")
        call = (function, tuple(args or ()), kwargs or {})
        try:
            return self.references.packed_for(to.id, call, kept)
        except TorshError:
            raise
        except Exception as error:
            raise _unpicklable(function, to, error) from error

    def wait(self, call: Any, until: float) -> bool:
        """Wait until the call is over, or until the moment `until` of the monotonic clock. Return
        whether it is over. Raises CallRefused when the hub is closed."""
        try:
            is_over: bool = self._hub.wait(call, until, self.servers.context.is_serving)
        except _native.Ended as error:
            raise CallRefused(str(error)) from None
        return is_over

    def announce(self, call: Any, then: Callable[[], None]) -> bool:
        """Have `then` called on a serving thread when the call is over. Return False if it already
        is."""
        return self.servers.announce(call, then)

    def outcome(self, begun: Begun) -> Any:
        """Return the result of a call that is over, or raise its error. Raises CallTimeout if its
        deadline has passed, PeerLost if the worker has gone."""
        call, worker, function = begun.call, begun.worker, begun.function
        try:
            reply = self._hub.take_reply(call)
            if reply is None:
                self._hub.forget(call)
                reply = self._hub.take_reply(call)  # it may have arrived just now
        except _native.Ended as error:
            raise self._lost(worker, function, str(error)) from None
        if reply is None:
            if call.reason:
                raise self._lost(worker, function, call.reason)
            raise CallTimeout(name_of(function), *worker.info, begun.deadline - begun.began)
        is_error, pickled, buffers = reply
        value = unpack(pickled, buffers)
        if is_error:
            raise rebuilt(Account(*value))
        return value

    def connected(self, to: WorkerInfo, deadline: float | None = None) -> None:
        """Make sure that there is a connection to the worker. Raises PeerLost or CallTimeout."""
        until = self._deadline(time.monotonic(), None) if deadline is None else deadline
        self.links.to(self.directory.find(to), "a connection", until)

    def enter(self, timeout: float) -> None:
        """Let the others find this worker. With a world size, wait for all of them. Raises
        ConfigError if another worker has its name, CommTimeout naming the ranks that did not come.
        """
        namesake = self.directory.namesake()
        if namesake is not None and self._lives(namesake):
            raise ConfigError(
                f"there is a worker {namesake.text} already: give each worker a name and a rank of "
                f"its own"
            )
        self.directory.enter(timeout)

    def latest(self, deadline: float | None) -> float:
        """Return `deadline`, or if it is None the default deadline of a call that begins now."""
        return time.monotonic() + self.options.rpc_timeout if deadline is None else deadline

    def when_ended(self, then: Callable[[int, str], None]) -> None:
        """Have then(worker's id, reason) called when the last connection to a worker has ended."""
        self._ends.append(then)

    def publications(self) -> Publications:
        """Return the publications and subscriptions of this worker, which are created at the first
        call."""
        with self._publishing:
            if self._publications is None:
                from torsh_runtime.rpc.publishing.peers import Peers
                from torsh_runtime.rpc.publishing.publications import Publications

                self._publications = found = Publications(Peers(self))
                self.when_ended(lambda worker, _: found.forget(worker))
            return self._publications

    def note_end(self, connection: int, reason: str) -> None:
        """Take note that a connection has ended. If it was the last one to its worker, call the
        functions given to when_ended()."""
        link = self.links.ended(connection)
        if link is None or link.peer in self.links.peers():
            return
        self._bury(link.peer)
        self.gone.add(link.peer)
        for then in self._ends:
            then(link.peer, reason)

    @property
    def num_pending(self) -> int:
        """Return the number of this worker's calls that are not answered yet."""
        return int(self._hub.pending)

    @property
    def num_serving(self) -> int:
        """Return the number of others' calls that are being carried out here, or wait for it."""
        return int(self._hub.serving)

    def begin_to_leave(self) -> bool:
        """Return whether this is the first thread that begins to leave."""
        with self._closing:
            is_first, self._is_leaving = not self._is_leaving, True
        return is_first

    def close(self) -> None:
        """Leave at once. Calls that are under way fail with PeerLost, here and at others. A second
        call does nothing."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        if self._publications is not None:
            self._publications.close()
        self._door.close()
        self.references.close()
        self._hub.close(time.monotonic() + _FAREWELL)
        self.servers.join(_FAREWELL)
        with suppress(StoreError):
            self.directory.leave()
        self._meeting.held.close()

    def close_in_fork(self) -> None:
        """Close what a fork of this process has inherited and others would wait for."""
        self._door.close_in_fork()

    def _begun(
        self,
        to: str | int | WorkerInfo,
        function: Any,
        args: Sequence[Any] | None,
        kwargs: Any,
        timeout: Any,
    ) -> tuple[Begun, list[Any]]:
        """Begin a call, and return it with the objects that must live until it is over."""
        if os.getpid() != self.own.pid:
            raise CallRefused("this process is a fork of a worker, and has no part in its calls")
        worker = self.directory.find(to)
        began = time.monotonic()
        deadline = self._deadline(began, timeout)
        kept: list[Any] = []
        pickled, buffers = self.packed(worker.info, function, args, kwargs, kept)
        under_way = self._begin(worker, function, pickled, buffers, began, deadline)
        return Begun(under_way, worker, function, began, deadline), kept

    def _begin(
        self,
        worker: Worker,
        function: Any,
        pickled: bytes,
        buffers: list[Any],
        began: float,
        deadline: float,
    ) -> Any:
        ended = ""
        while True:
            try:
                link = self.links.to(worker, function, deadline)
                call = self._hub.call(link.connection, pickled, buffers, deadline)
                if call is not None:
                    return call
                self._make_room(worker, function, link, pickled, buffers, began, deadline)
            except _native.Ended as error:  # nothing was sent: another connection may do
                self.links.drop(link)
                if ended:
                    raise self._lost(worker, function, ended) from None
                ended = str(error)
            except PeerLost:
                if ended:
                    raise self._lost(worker, function, ended) from None
                raise

    def _make_room(
        self,
        worker: Worker,
        function: Any,
        link: PeerConnection,
        pickled: bytes,
        buffers: list[Any],
        began: float,
        deadline: float,
    ) -> None:
        size = len(pickled) + sum(each.raw().nbytes for each in buffers)
        is_serving = self.servers.context.is_serving
        if not self._hub.wait_for_room(link.connection, False, size, deadline, is_serving):
            detail = f": more than {UNDER_WAY_BYTES >> 20} MiB are under way to it"
            raise CallTimeout(name_of(function), *worker.info, deadline - began, detail)

    def _lost(self, worker: Worker, function: Any, reason: str) -> PeerLost:
        return lost(worker.info, worker.host, name_of(function), reason)

    def _bury(self, number: int) -> None:
        """Remove the directory entry of a worker that has died, where workers come and go."""
        with suppress(TorshError):
            worker = self.directory.entry(number)
            if worker is not None and not self._lives(worker):
                self.directory.remove(worker)

    def _lives(self, worker: Worker) -> bool:
        is_near = worker.is_near(self.own)
        try:
            self._lobby.check_alive(worker, is_near, time.monotonic() + _ATTEMPT_SECONDS)
        except Unreachable:
            return False
        except TimeoutError:  # it may be stopped
            return True
        return True

    def _deadline(self, now: float, timeout: Any) -> float:
        """Return the deadline of a call, which is at most that of the call this thread is carrying
        out."""
        default = self.options.rpc_timeout
        is_default = timeout is None or timeout == UNSET_RPC_TIMEOUT
        own = now + (default if is_default else seconds(timeout, default))
        inherited = self.servers.context.deadline
        return own if inherited is None else min(own, inherited)


def _near() -> tuple[str, list[socket.socket]]:
    """Listen at an abstract socket for the workers of this node."""
    address = f"\0torsh-{os.getuid()}-rpc-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(_MAX_UNIX_QUEUE)
    return address, [listener]


def _unpicklable(function: Any, worker: WorkerInfo, error: Exception) -> Exception:
    kind = type(error) if isinstance(error, pickle.PicklingError | AttributeError) else TypeError
    advice = (
        ". Use functions of modules that both sides import, or a name given to rpc.register()"
        if kind is not TypeError
        else ""
    )
    return kind(
        f"the call of {name_of(function)} on {worker.name!r} cannot be pickled: {error}{advice}"
    )
