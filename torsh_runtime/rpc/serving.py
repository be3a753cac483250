"""The threads that carry out calls of others. Their number grows while they wait for calls of their
own, so that nested calls cannot use all of them up."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torsh_runtime.backends.future import around_waits
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.rpc.connections import PeerConnection
from torsh_runtime.rpc.failures import account
from torsh_runtime.rpc.functions import is_async, name_of, registry, when_done
from torsh_runtime.rpc.pickling import pack, unpack

if TYPE_CHECKING:
    from torsh_runtime.rpc.agent import Agent

STOP, CALLED, COMPLETED, ENDED = range(4)
"""Next actions of a thread, as the compiled library's Item::What."""
_MOMENT = 0.001
"""Seconds until a thread that is being started is looked at again."""
_log = logging.getLogger("torsh_runtime")


class Context(threading.local):
    """Holds what the present thread is carrying out."""

    is_serving = False
    deadline: float | None = None
    """Deadline of the call, or None if it has none."""


class Servers:
    """Holds all threads that serve calls."""

    def __init__(self, agent: Agent, hub: Any) -> None:
        self.context = Context()
        self._agent = agent
        self._hub = hub
        self._announced: dict[int, Callable[[], None]] = {}
        self._threads: set[threading.Thread] = set()

    def start(self) -> None:
        """Start one more thread."""
        thread = threading.Thread(target=self._run, name="torsh-rpc", daemon=True)
        self._threads.add(thread)  # before it runs: join() must not miss it
        try:
            thread.start()
        except BaseException:
            self._threads.discard(thread)
            raise

    def join(self, seconds: float) -> None:
        """Wait for the threads, which end when the hub is closed. Those that carry out a call end
        when it is over. Wait at most `seconds`."""
        until = time.monotonic() + seconds
        own = threading.current_thread()
        while (left := until - time.monotonic()) > 0:
            others = [thread for thread in self._threads.copy() if thread is not own]
            if not others:
                return
            try:
                others[0].join(left)  # it may have started another thread before
            except RuntimeError:  # it is just being started
                time.sleep(_MOMENT)
                continue
            if not others[0].is_alive():
                self._threads.discard(others[0])

    def announce(self, call: Any, then: Callable[[], None]) -> bool:
        """Have `then` called when the call is over. Return False if it already is."""
        self._announced[call.number] = then
        if self._hub.announce(call):
            return True
        return self._announced.pop(call.number, None) is None

    def _run(self) -> None:
        self.context.is_serving = True
        around_waits.by = _Waiting(self._hub)
        done = STOP
        while True:
            try:
                what, needs_thread, *rest = self._hub.next(done)
            except _native.Ended:  # this process is a fork
                return
            if needs_thread:
                self.start()
            if what == STOP:
                self._threads.discard(threading.current_thread())
                return
            self._do(what, *rest)
            done, rest = what, []

    def _do(
        self,
        what: int,
        connection: int,
        number: int,
        deadline: float | None,
        message: Any,
        call: Any,
        why: str,
    ) -> None:
        try:
            if what == CALLED:
                link = self._agent.links.of(connection)
                if link is not None and message is not None:
                    self._carry_out(link, number, deadline, message)
            elif what == COMPLETED:
                then = self._announced.pop(call.number, None)
                if then is not None:
                    then()
            else:
                self._agent.note_end(connection, why)
        except Exception:
            _log.exception("a thread that serves calls failed")

    def _carry_out(
        self, link: PeerConnection, call: int, deadline: float | None, message: Any
    ) -> None:
        self.context.deadline = deadline
        try:
            _, pickled, buffers = message
            function, args, kwargs = unpack(pickled, buffers)
            if deadline is not None and time.monotonic() >= deadline:
                return  # nobody waits for it any more
            if isinstance(function, str):
                function = registry.find(function)
            value = function(*args, **kwargs)
            if is_async(function):
                when_done(
                    value, function, partial(self._reply_later, link, call, deadline, function)
                )
                return
        except BaseException as error:
            self._fail(link, call, error)
            return
        finally:
            self.context.deadline = None
        self._reply(link, call, deadline, value, function)

    def _reply_later(
        self,
        link: PeerConnection,
        call: int,
        deadline: float | None,
        function: object,
        get: Callable[[], Any],
    ) -> None:
        try:
            value = get()
        except BaseException as error:
            self._fail(link, call, error)
            return
        self._reply(link, call, deadline, value, function)

    def _reply(
        self,
        link: PeerConnection,
        call: int,
        deadline: float | None,
        value: object,
        function: object,
    ) -> None:
        try:
            pickled, buffers = self._agent.references.packed_for(link.peer, value, None)
        except Exception as error:
            text = f"the result of {name_of(function)} cannot be pickled: {error}"
            self._fail(link, call, pickle.PicklingError(text))
            return
        if deadline is not None and time.monotonic() >= deadline:
            return
        self._send(link, False, call, pickled, buffers, deadline)

    def _fail(self, link: PeerConnection, call: int, error: BaseException) -> None:
        told = account(error, self._agent.own.info, self._agent.own.host)
        self._send(link, True, call, pack(tuple(told))[0], [], None)

    def _send(
        self,
        link: PeerConnection,
        is_error: bool,
        call: int,
        pickled: bytes,
        buffers: list[Any],
        deadline: float | None,
    ) -> None:
        try:
            if buffers:
                size = sum(each.raw().nbytes for each in buffers)
                until = self._agent.latest(deadline)
                is_serving = self.context.is_serving
                if not self._hub.wait_for_room(link.connection, True, size, until, is_serving):
                    _log.warning(
                        "a result of %d bytes was thrown away: worker %d takes none",
                        size,
                        link.peer,
                    )
                    return
            self._hub.reply(link.connection, is_error, call, pickled, buffers)
        except _native.Ended:  # the caller has gone
            return


class _Waiting:
    """While entered, this thread does not count as one that carries out a call."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub

    def __enter__(self) -> None:
        self._hub.begin_wait()

    def __exit__(self, *_: object) -> None:
        self._hub.end_wait()
