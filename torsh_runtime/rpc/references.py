"""References to values that stay with their owner.

The owner counts the references that are on their way or with others. Each has a fork's number that
is released once: by its holder when the last copy in its process is gone, or by the owner when the
holder's process has ended. The owner is informed of a reference that is handed on before it leaves.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from torsh_runtime.backends.future import Future
from torsh_runtime.errors import TorshError
from torsh_runtime.rpc.current import current_agent
from torsh_runtime.rpc.failures import CallRefused
from torsh_runtime.rpc.functions import async_execution, is_async, registry, when_done
from torsh_runtime.rpc.options import WorkerInfo
from torsh_runtime.rpc.pickling import pack, unpack

if TYPE_CHECKING:
    from torsh_runtime.rpc.agent import Agent


class Key(NamedTuple):
    """Identifies a value that is referred to, or one of its forks."""

    worker: int
    """Id of the worker that made the key."""
    number: int


class Owned:
    """A value that is kept by its owner."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.value = Future()
        self.forks: dict[Key, int] = {}
        """Id of the worker that holds each fork."""
        self.is_told = False
        """True once the request to make the value has arrived. Requests of others may arrive
        earlier."""


class Held:
    """Represents all references of this process to one value of another worker."""

    def __init__(self, key: Key, fork: Key, owner: WorkerInfo, creation: Future | None) -> None:
        self.key, self.fork, self.owner = key, fork, owner
        self.creation = creation

    @property
    def is_new(self) -> bool:
        """Return whether the owner may not have received the request to make the value yet."""
        return self.creation is not None and not self.creation.done()


class _Way(threading.local):
    """The destination of what this thread pickles."""

    to: int | None = None
    kept: list[Any] | None = None
    """Objects that are kept until a call is over; None for results."""


class References:
    """Keeps the references of one worker, and the values it owns."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._process = os.getpid()
        self._lock = threading.RLock()  # a finalizer may run within
        self._numbers = itertools.count()
        self._owned: weakref.WeakValueDictionary[Key, Owned] = weakref.WeakValueDictionary()
        self._pinned: dict[Key, Owned] = {}
        """Values that others refer to, or are about to."""
        self._held: weakref.WeakValueDictionary[Key, Held] = weakref.WeakValueDictionary()
        self._released: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._janitor: threading.Thread | None = None
        self._way = _Way()

    def packed_for(
        self, worker: int, value: object, kept: list[Any] | None
    ) -> tuple[bytes, list[Any]]:
        """Return the pickle of a value for that worker, and the buffers beside it. Objects that
        must live until a call is over are appended to `kept`, which is None for results. Raises
        what pickle raises."""
        way = self._way
        before = way.to, way.kept
        way.to, way.kept = worker, kept
        try:
            return pack(value)
        finally:
            way.to, way.kept = before

    def seconds_left(self) -> float:
        """Return the seconds until the deadline of the call that this thread carries out."""
        return self._agent.latest(self._agent.servers.context.deadline) - time.monotonic()

    def new_key(self) -> Key:
        """Return a new key of this worker."""
        return Key(self._agent.own.info.id, next(self._numbers))

    def own(self, value: object) -> Owned:
        """Make this worker the owner of a value, so that it can be referred to."""
        owned = Owned(self.new_key())
        owned.is_told = True
        owned.value.set_result(value)
        with self._lock:
            self._owned[owned.key] = owned
        return owned

    def expected(self, key: Key) -> Owned:
        """Return a value of this worker's that exists, or is about to be made."""
        with self._lock:
            found = self._owned.get(key)
            if found is None:
                found = self._owned[key] = Owned(key)
            return found

    def found(self, key: Key, is_new: bool = False) -> Owned:
        """Return a value of this worker's. With `is_new`, the caller has asked for it to be made,
        and does not know yet whether the request has arrived. Raises CallRefused if the value has
        been released."""
        if is_new:
            with self._lock:
                owned = self.expected(key)
                self._keep(owned)
                return owned
        found = self._owned.get(key)
        if found is None:
            raise CallRefused(
                "the value of this RRef has been let go of by its owner: the connection to who "
                "referred to it had ended"
            )
        return found

    def hold(self, key: Key, fork: Key, owner: WorkerInfo, creation: Future | None = None) -> Held:
        """Hold a reference that has arrived, or that this worker has made."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = Held(key, fork, owner, creation)
                weakref.finalize(held, self._release, owner, key, fork, creation).atexit = False
            elif fork != held.fork:
                self._release(owner, key, fork, None)
        return held

    def add_fork(self, key: Key, fork: Key, holder: int) -> None:
        """Note, at the owner, that a worker has a reference or is about to get one."""
        with self._lock:
            owned = self.expected(key)
            owned.forks[fork] = holder
            self._keep(owned)

    def begin(self, key: Key, fork: Key, holder: int) -> Owned:
        """Begin, at the owner, to make a value for that holder."""
        with self._lock:
            owned = self.expected(key)
            owned.is_told = True
            self.add_fork(key, fork, holder)
            return owned

    def _keep(self, owned: Owned) -> None:
        """Keep the value as long as anybody refers to it, or it is still to be made."""
        if owned.forks or not owned.is_told:
            self._pinned[owned.key] = owned
        else:
            self._pinned.pop(owned.key, None)

    def drop_fork(self, key: Key, fork: Key) -> None:
        """Forget, at the owner, a reference that is gone."""
        with self._lock:
            owned = self._owned.get(key)
            if owned is not None:
                owned.forks.pop(fork, None)
                self._keep(owned)

    def drop_all_of(self, worker: int) -> None:
        """Forget, at the owner, all references of a worker whose process has ended or left."""
        with self._lock:
            for owned in list(self._pinned.values()):
                owned.is_told |= owned.key.worker == worker  # its request would never arrive
                for fork in [fork for fork, holder in owned.forks.items() if holder == worker]:
                    del owned.forks[fork]
                self._keep(owned)

    def numbers(self) -> dict[str, int]:
        """Return the numbers of references and values, for tests and diagnosis."""
        with self._lock:
            return {
                "owned": len(self._pinned),
                "held": len(self._held),
                "forks": sum(len(owned.forks) for owned in self._pinned.values()),
            }

    def packed(self, reference: Owned | Held) -> tuple[Key, Key | None, WorkerInfo, bool]:
        """Return the content of a reference's pickle, once its owner knows of it. Raises
        CallRefused outside of a call."""
        to, kept = self._way.to, self._way.kept
        if to is None:
            raise CallRefused("an RRef can be pickled only as an argument or result of a call")
        if isinstance(reference, Owned):
            fork = self.new_key()
            self.add_fork(reference.key, fork, to)
            return reference.key, fork, self._agent.own.info, False
        if to == reference.owner.id and kept is not None:
            kept.append(reference)
            return reference.key, None, reference.owner, reference.is_new
        fork = self.new_key()
        owner = reference.owner
        self._agent.invoke(owner, at_owner_add, (reference.key, fork, to), {}).wait()
        return reference.key, fork, owner, False

    def unpacked(self, key: Key, fork: Key | None, owner: WorkerInfo, is_new: bool) -> Owned | Held:
        """Return the reference whose packed() content has arrived."""
        if owner.id == self._agent.own.info.id:
            owned = self.found(key, is_new)
            if fork is not None:
                self.drop_fork(key, fork)
            return owned
        assert fork is not None, "only to its owner a reference is sent without a fork"
        with suppress(TorshError):  # so that the owner notices when this process ends
            self._agent.connected(owner)
        return self.hold(key, fork, owner)

    def close(self) -> None:
        """End the thread that releases references."""
        self._released.put(None)

    def call_later(self, worker: WorkerInfo, function: Any, *args: Any) -> None:
        """Call a function on that worker from another thread, as finalizers must. The result is
        discarded."""
        self._do_later(lambda: self._agent.invoke(worker, function, args, {}))

    def _do_later(self, action: Callable[[], object]) -> None:
        if os.getpid() != self._process:
            return  # a fork of the worker has no part in its calls
        with self._lock:
            if self._janitor is None:
                self._janitor = threading.Thread(
                    target=self._tidy, name="torsh-rpc-references", daemon=True
                )
                self._janitor.start()
        self._released.put(action)

    def _release(self, owner: WorkerInfo, key: Key, fork: Key, creation: Future | None) -> None:
        if creation is None:
            self.call_later(owner, at_owner_drop, key, fork)
            return

        def drop(_: object) -> None:
            self.call_later(owner, at_owner_drop, key, fork)

        self._do_later(lambda: creation.add_done_callback(drop))

    def _tidy(self) -> None:
        while (action := self._released.get()) is not None:
            with suppress(TorshError):  # the worker has gone, with its values
                action()


def _references() -> References:
    return current_agent().references


def at_owner_add(key: Key, fork: Key, holder: int) -> None:
    """Call References.add_fork() at the owner."""
    _references().add_fork(key, fork, holder)


def at_owner_drop(key: Key, fork: Key) -> None:
    """Call References.drop_fork() at the owner."""
    _references().drop_fork(key, fork)


@async_execution
def at_owner_create(
    key: Key, fork: Key, holder: int, pickled: Any, buffers: Sequence[Any]
) -> Future:
    """Make the value of remote(), by the call that is pickled."""
    value = _references().begin(key, fork, holder).value
    try:
        function, args, kwargs = unpack(pickled, buffers)
        called = registry.find(function) if isinstance(function, str) else function
        made = called(*args, **kwargs)
        if is_async(called):
            when_done(made, called, lambda get: _complete(value, get))
        else:
            value.set_result(made)
    except BaseException as error:
        value.set_exception(error)
    return value.then(lambda _: None)


def _complete(future: Future, get: Callable[[], Any]) -> None:
    try:
        value = get()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)


@async_execution
def at_owner_fetch(key: Key, is_new: bool) -> Future:
    """Return the value. With `is_new`, the request to make it may not have arrived yet."""
    return _references().found(key, is_new).value


@async_execution
def at_owner_invoke(key: Key, is_new: bool, method: str, args: Any, kwargs: Any) -> Any:
    """Call a method of the value."""
    references = _references()
    value = references.found(key, is_new).value.wait(references.seconds_left())
    function = getattr(value, method)
    result = function(*args, **kwargs)
    if is_async(function):
        return result
    done = Future()
    done.set_result(result)
    return done
