"""The core of the store's clients, without any I/O: the requests that they send, how long they wait
for the answers, and how they interpret an answer or its absence.

StoreClient carries out calls with blocking sockets, RemoteStore within asyncio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store import wire
from torsh_runtime.store.base import Compare, Entry, Event, Listing, Outcome, Write
from torsh_runtime.store.prefix import Scope

T = TypeVar("T")

FAILURES = (OSError, EOFError, StoreError)
"""Errors that end a call: a broken connection, its deadline (TimeoutError), or a store that
refuses."""
_MOST_NAMES = 4
"""The largest number of a call's keys that an error names."""


class Call(NamedTuple, Generic[T]):
    """Represents a call of a method of the Store port."""

    request: wire.Request
    endpoint: str
    seconds: float
    """Seconds that the call may take from its begin, connecting included."""
    shown: Callable[[Any], T]
    """Converts the store's result to that which the caller sees."""

    @property
    def label(self) -> str:
        """Return a description of the call for an error's text."""
        return f"{_described(self.request)} at {self.endpoint}"

    @property
    def is_prompt(self) -> bool:
        """Return whether a late answer means that something is wrong; a wait may be long."""
        return self.request.op != "wait"

    def result(self, reply: wire.Reply) -> T:
        """Return what the method returns; for a watch, its next event.

        Raises StoreError or StoreTimeout if the store sent that instead.
        """
        op = self.request.op
        if reply.status != (wire.EVENT if op == "watch" else wire.RESULT):
            raise wire.decode_failure(reply.body)
        return self.shown(wire.decode_result(op, reply.body))

    def failure(self, error: Exception) -> StoreError:
        """Return the error that the caller gets in place of `error`, one of FAILURES."""
        if isinstance(error, StoreTimeout):
            return StoreTimeout(f"{self.label}: {error}")
        if isinstance(error, StoreError):
            return StoreError(f"{self.label}: {error}")
        if isinstance(error, TimeoutError):
            return StoreTimeout(
                f"{self.label}: the store did not answer within {self.seconds:g} s. The process "
                f"that serves it is overloaded, stopped or cut off; look at its output."
            )
        return StoreError(
            f"{self.label}: the connection failed ({error}). The process that serves the store "
            f"has ended or cannot be reached; look at its output."
        )


class Calls(NamedTuple):
    """Creates the calls of a client, which sees the store through a scope.

    The methods are those of the Store port, and raise StoreError for arguments that no store would
    accept.
    """

    endpoint: str
    seconds: float
    """Seconds that a call may take; that of wait() adds its own timeout."""
    scope: Scope = Scope()

    def within(self, prefix: str) -> Calls:
        """Return the calls for a part of the scope, whose keys begin with the prefix."""
        return self._replace(scope=self.scope.within(prefix))

    def bounded(self, seconds: float) -> Calls:
        """Return the same calls, each of which may take so many seconds."""
        return self._replace(seconds=seconds)

    def get(self, key: str) -> Call[Entry | None]:
        return self._call("get", self.scope.key(key), shown=self.scope.optional)

    def list(self, prefix: str) -> Call[Listing]:
        return self._call("list", self.scope.prefix + prefix, shown=self.scope.listing)

    def put(self, key: str, value: bytes, lease: int) -> Call[int]:
        return self._call("put", self.scope.key(key), value, lease)

    def delete(self, key: str) -> Call[bool]:
        return self._call("delete", self.scope.key(key))

    def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Call[Outcome]:
        scope = self.scope
        return self._call("transact", [*map(scope.compare, compares)], [*map(scope.write, writes)])

    def add(self, key: str, amount: int) -> Call[int]:
        return self._call("add", self.scope.key(key), amount)

    def wait(self, keys: Sequence[str], timeout: float) -> Call[Mapping[str, Entry]]:
        if not 0 <= timeout < math.inf:
            raise StoreError(f"a timeout must be a finite number of seconds >= 0, got {timeout}")
        names = [*map(self.scope.key, keys)]
        call = self._call("wait", names, float(timeout), shown=self.scope.found)
        return call._replace(seconds=timeout + self.seconds)

    def watch(self, prefix: str, after: int) -> Call[Event]:
        return self._call("watch", self.scope.prefix + prefix, after, shown=self.scope.event)

    def grant(self, ttl: float) -> Call[int]:
        return self._call("grant", float(ttl))

    def keep_alive(self, lease: int) -> Call[None]:
        return self._call("keep_alive", lease)

    def revoke(self, lease: int) -> Call[None]:
        return self._call("revoke", lease)

    def is_private(self) -> Call[bool]:
        """Create the call that a client answers from its connection; it is never sent."""
        return self._call("is_private")

    def _call(
        self, op: str, *args: object, shown: Callable[[Any], Any] = lambda it: it
    ) -> Call[Any]:
        return Call(wire.Request(1, op, args), self.endpoint, self.seconds, shown)


def _described(request: wire.Request) -> str:
    if not request.args:
        return request.op
    subject = request.args[0]
    if isinstance(subject, list):
        names = [it if isinstance(it, str) else it.key for it in subject[:_MOST_NAMES]]
        more = ", …" if len(subject) > _MOST_NAMES else ""
        return f"{request.op}({', '.join(map(repr, names))}{more})"
    return f"{request.op}({subject!r})"
