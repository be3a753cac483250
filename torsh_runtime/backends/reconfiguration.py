"""Groups that are given another backend in place, while everybody keeps the group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, Protocol, Self, TypeVar

from torsh_runtime.backends.base import Backend, BackendType, Facts
from torsh_runtime.backends.operation import Op, Operations
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.errors import (
    CommAborted,
    CommTimeout,
    ConfigError,
    PeerLost,
    StoreTimeout,
)
from torsh_runtime.store.base import Entry
from torsh_runtime.transitions import Machine

_SLICE = 0.2
"""Seconds between two looks at whether a configure() that waits was given up."""


class Configured(Protocol):
    """Holds the backend that a group is to get."""

    @property
    def backend(self) -> Backend:
        """Return the new backend of the group."""

    def leave(self) -> None:
        """Release everything that it uses."""


T = TypeVar("T", bound=Configured)


class Attempt:
    """Represents a single call of configure(), or of another function that does the same."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.thread = threading.get_ident()
        self._ended_by = ""

    def end(self, by: str) -> None:
        """Let it give up soon, with CommAborted."""
        self._ended_by = by

    def check(self) -> None:
        """Raise CommAborted if this call is to give up."""
        if self._ended_by:
            raise CommAborted(
                f"{self.call}() was given up: {self._ended_by} in another thread. The group is "
                f"what that has made of it."
            )


class Reconfiguration:
    """Configures a group for callers in any thread: a single call at a time, and the latest wins.

    An earlier call that still waits for its peers gives up.
    """

    def __init__(self) -> None:
        self._under_way = threading.Lock()
        self._guard = threading.Lock()
        self._latest: Attempt | None = None
        self._seen = Machine("configure", "idle")

    def change(
        self,
        current: Callable[[], Backend],
        put: Callable[[Backend], None],
        leave: Callable[[], None],
        connect: Callable[[Attempt, float], T],
        adopt: Callable[[T], None],
        timeout: float,
        call: str = "configure",
    ) -> None:
        """Leave the `current` backend and what belongs to it, `connect` (given the seconds that are
        left) and `adopt` what that has made.

        What is under way in the old backend ends with CommAborted, and for its other ranks, where
        they need this one, with PeerLost. Until the new one is there, and after a failure, the
        group has a backend that refuses every operation.
        Raises what connecting raises, CommAborted if the call was given up, and CommTimeout if
        another thread's call did not end within `timeout` seconds. `call` is its name, for errors.
        """
        deadline = time.monotonic() + timeout
        with self._turn(timeout, call) as turn:
            old = current()
            put(refusing(old, f"is being configured: wait until {call}() has returned"))
            try:
                self._seen.become("leaving", f"a group of {old.world_size} ranks")
                old.close()  # and not abort(): peers may still be about to end the last operation
                leave()
                self._seen.become("connecting")
                made = connect(turn, max(deadline - time.monotonic(), 0.001))
                self._settle(turn, made, adopt)
                self._seen.become("configured", f"a group of {made.backend.world_size} ranks")
            except BaseException as error:
                told = _as_configure(error, timeout)
                self._seen.become("failed", _cause(told))
                put(refusing(old, f"is not configured: {_cause(told)}. Call {call}() again"))
                raise told from error.__cause__

    def give_up(self) -> None:
        """End a call that is under way."""
        with self._guard:
            if self._latest is not None:
                self._latest.end("abort() was called")

    def _settle(self, turn: Attempt, made: T, adopt: Callable[[T], None]) -> None:
        try:
            with self._guard:  # who gives it up later aborts the new backend
                turn.check()
                adopt(made)
        except BaseException:
            made.backend.abort()
            made.backend.close()
            made.leave()
            raise

    @contextmanager
    def _turn(self, timeout: float, call: str) -> Iterator[Attempt]:
        turn = Attempt(call)
        with self._guard:
            if self._latest is not None:
                if self._latest.thread == turn.thread:
                    raise CommAborted(
                        f"{call}() was called while it had been interrupted itself, by a signal "
                        f"handler for one; set a flag in the handler instead"
                    )
                self._latest.end(f"{call}() was called")
            self._latest = turn
        try:
            if not self._under_way.acquire(timeout=timeout):
                raise CommTimeout(call, 0, timeout, (), _NOT_ENDED)
            try:
                turn.check()
                yield turn
            finally:
                self._under_way.release()
        finally:
            with self._guard:
                if self._latest is turn:
                    self._latest = None


_NOT_ENDED = ", for an earlier call of another thread has not ended; call it again"


class Checked(Protocol):
    """Tells whether a call is to give up."""

    def check(self) -> None:
        """Raise an error if it is."""


class AttemptStore:
    """A store whose waits end when the call that they are for is to give up."""

    def __init__(self, store: Any, turn: Checked) -> None:
        """Wrap `store`, a StoreClient or what the native backend accepts in place of it."""
        self._store = store
        self._turn = turn

    def scoped(self, prefix: str) -> Self:
        """Return the same store seen through a prefix."""
        return type(self)(self._store.scoped(prefix), self._turn)

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        """Wait as the store does; also raise the error for which this call is to give up."""
        deadline = time.monotonic() + timeout
        while True:
            self._turn.check()
            left = max(deadline - time.monotonic(), 0.0)
            try:
                found: Mapping[str, Entry] = self._store.wait(keys, min(left, _SLICE))
                return found
            except StoreTimeout:  # of a store that does not answer, after longer than a slice
                if left <= _SLICE or time.monotonic() >= deadline:
                    raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Refusing(Operations):
    """In the place of a backend: refuses every operation. `rank` and so on are the last one's."""

    failed = True

    def __init__(self, last: Any, error: Callable[[], Exception]) -> None:
        """Take the place of the backend `last`. `error` creates the exception to raise."""
        self.rank, self.world_size, self.type = last.rank, last.world_size, last.type
        self._error = error

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        raise self._error()

    def abort(self) -> None:
        """Do nothing: no operation can be under way."""

    def close(self) -> None:
        """Do nothing: there is no group to leave."""

    def note_title(self, title: str) -> None:
        """Do nothing: no operation will be recorded."""

    def take_from(self, spares: object) -> None:
        """Do nothing: no memory is shared."""

    def subgroup(self, *_: object) -> None:
        """Return None: further groups rendezvous over the store."""

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error()


class Unmet(Refusing):
    """Holds the place of the backend in a worker that replaces a lost one, until it has joined."""

    facts = Facts(is_in_node=True)
    job_ranks = ()

    def __init__(self, rank: int, world_size: int) -> None:
        """Take this rank's place in a group that is going to be connected by configure()."""
        place = SingleBackend(BackendType.NATIVE)
        super().__init__(place, partial(ConfigError, _NOT_JOINED.format(rank)))
        self.rank, self.world_size = rank, world_size

    def run(self, op: Op, timeout: float, async_op: bool = False) -> Work:
        """Refuse the operation, unless it is a barrier: the others have passed those long ago."""
        return COMPLETED if op.kind == "barrier" else super().run(op, timeout, async_op)

    def note_title(self, title: str) -> None:
        """Do nothing: there is no recording of a group that is not connected."""


_NOT_JOINED = (
    "rank {0} takes the place of a worker that was lost, and can communicate only after "
    "tr.elastic.join(), which gives it the others' state: call join() before the first collective "
    "of your own, or leave that collective out where TORSH_REPLACEMENT is set"
)


def check_plan(rank: int, world_size: int) -> None:
    """Raise ConfigError unless a group of `world_size` ranks can have this rank."""
    if world_size < 1 or rank not in range(world_size):
        raise ConfigError(f"rank {rank} is not within 0 <= rank < world_size, {world_size}")


def check_first(turns: int, rank: int, quorum: str) -> None:
    """Raise ConfigError if `rank` has connected under this quorum before.

    Its old records in the store would otherwise be taken for new ones.
    """
    if turns > 1:
        raise ConfigError(
            f"a rank {rank} has called configure() with {quorum} before. Every configuration, also "
            f"one after a failed attempt, takes a quorum_id or a prefix of the store of its own, "
            f"the same on all ranks"
        )


def refusing(last: Any, words: str) -> Any:
    """Return what takes the place of the backend `last`, and says in `words` what the group is."""
    return Refusing(last, partial(CommAborted, f"the process group {words}."))


def _cause(error: BaseException) -> str:
    return str(error).removesuffix(".") or type(error).__name__


def _as_configure(error: BaseException, timeout: float) -> BaseException:
    """Return the same error, naming configure() if it names the general way of making groups."""
    match error:
        case CommTimeout(op="init_process_group"):
            return CommTimeout("configure", 0, timeout, error.missing, error.detail)
        case PeerLost(op="init_process_group"):
            return PeerLost(error.rank, "configure", 0, error.detail)
    return error
