"""Short conversations with many peers at once, over non-blocking sockets.

A conversation is a generator that yields the epoll events it waits for and returns its result.
Each has a deadline of its own, so whoever stays silent or talks nonsense delays nobody else.
Deadlines are moments of time.monotonic().
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torsh_runtime.store.peer import foreign_uid

Conversation = Generator[int, None, Any]

ADMISSION_SECONDS = 10.0
"""How long a caller may take to prove who it is."""
MAX_STRANGERS = 4096
"""Callers that have proved nothing yet; of more, the oldest is cut off."""


class Refused(Exception):
    """The other side is not who it should be."""


@dataclass(frozen=True, slots=True, eq=False)
class Talk:
    """One conversation; `label` is the starter's, None of a caller's."""

    sock: socket.socket
    script: Conversation
    deadline: float
    label: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a conversation ended. With an error the socket is closed, else it is the receiver's."""

    label: object
    sock: socket.socket
    result: Any = None
    error: Exception | None = None


class _Listener(NamedTuple):
    sock: socket.socket
    answer: Callable[[socket.socket], Conversation]
    secret: bytes


class Talks:
    """All conversations of one thread. Leaving the `with` closes the sockets it still has."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._talks: dict[int, Talk] = {}
        self._listeners: dict[int, _Listener] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for talk in self._talks.values():
            talk.script.close()
            talk.sock.close()
        self._poll.close()

    def listen(
        self,
        listener: socket.socket,
        answer: Callable[[socket.socket], Conversation],
        secret: bytes = b"",
    ) -> None:
        """Hold the conversation answer(sock) with whoever connects and may be spoken with: none
        of another user of this host, unless over TCP with a secret. The listener stays open.
        """
        listener.setblocking(False)
        self._listeners[listener.fileno()] = _Listener(listener, answer, secret)
        self._poll.register(listener, select.EPOLLIN)

    def begin(
        self, sock: socket.socket, script: Conversation, deadline: float, label: object = None
    ) -> Outcome | None:
        """Start a conversation; how it ended, if it has already. It owns the socket."""
        sock.setblocking(False)
        talk = self._talks[sock.fileno()] = Talk(sock, script, deadline, label)
        self._poll.register(sock, 0)
        return self._advance(talk)

    def end(self, sock: socket.socket) -> None:
        """End the socket's conversation; the socket is the caller's."""
        self._end(self._talks[sock.fileno()])

    def turn(self, seconds: float) -> Iterator[Outcome]:
        """Go on with all for at most so many seconds; those that have ended meanwhile."""
        now = time.monotonic()
        next_deadline = min((talk.deadline for talk in self._talks.values()), default=now + seconds)
        pause = max(min(seconds, next_deadline - now), 0.0)
        for number, _ in self._poll.poll(pause):
            if number in self._listeners:
                yield from self._accept(number)
            elif (outcome := self._advance_if_open(number)) is not None:
                yield outcome
        yield from self._expire()

    def _accept(self, number: int) -> Iterator[Outcome]:
        listener, answer, secret = self._listeners[number]
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._drop_oldest_caller():
                raise
            return  # it has hung up already, or the next turn has room for it
        if _is_foreign(sock, secret):
            sock.close()
            return
        if sum(talk.label is None for talk in self._talks.values()) >= MAX_STRANGERS:
            self._drop_oldest_caller()
        deadline = time.monotonic() + ADMISSION_SECONDS
        if (outcome := self.begin(sock, answer(sock), deadline)) is not None:
            yield outcome

    def _drop_oldest_caller(self) -> bool:
        caller = next((talk for talk in self._talks.values() if talk.label is None), None)
        if caller is not None:
            self._end(caller)
            caller.sock.close()
        return caller is not None

    def _advance_if_open(self, number: int) -> Outcome | None:
        talk = self._talks.get(number)  # it may have been dropped in this very turn
        return self._advance(talk) if talk else None

    def _advance(self, talk: Talk) -> Outcome | None:
        try:
            self._poll.modify(talk.sock, next(talk.script))
        except StopIteration as end:
            self._end(talk)
            return Outcome(talk.label, talk.sock, end.value)
        except (OSError, EOFError, ValueError, Refused) as error:
            return self._fail(talk, error)
        return None

    def _expire(self) -> Iterator[Outcome]:
        now = time.monotonic()
        for talk in [talk for talk in self._talks.values() if talk.deadline <= now]:
            yield self._fail(talk, TimeoutError("it did not answer in time"))

    def _fail(self, talk: Talk, error: Exception) -> Outcome:
        self._end(talk)
        talk.sock.close()
        return Outcome(talk.label, talk.sock, error=error)

    def _end(self, talk: Talk) -> None:
        talk.script.close()
        del self._talks[talk.sock.fileno()]
        self._poll.unregister(talk.sock)


def _is_foreign(sock: socket.socket, secret: bytes) -> bool:
    try:
        return foreign_uid(sock, secret) is not None
    except OSError:  # it has gone
        return True


def receive(sock: socket.socket, size: int, last: bool = True) -> Generator[int, None, bytes]:
    """Exactly `size` bytes. Refused when more have come, unless these are not the `last` ones
    before it is the other side's turn to listen.
    """
    data = b""
    while len(data) < size:
        yield select.EPOLLIN
        try:
            part = sock.recv(size + last - len(data))
        except BlockingIOError:
            continue  # woken for nothing
        if not part:
            raise EOFError("it hung up")
        data += part
    if len(data) > size:
        raise Refused("it sent more than it was asked for")
    return data


def send(sock: socket.socket, data: bytes) -> Generator[int, None, None]:
    """All of the data."""
    view = memoryview(data)
    while view:
        yield select.EPOLLOUT
        with suppress(BlockingIOError):
            view = view[sock.send(view) :]


def connect(sock: socket.socket, address: tuple[Any, ...]) -> Generator[int, None, None]:
    """Connect the socket. OSError when nobody listens there."""
    code = sock.connect_ex(address)
    if code == errno.EINPROGRESS:
        yield select.EPOLLOUT
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, errno.errorcode.get(code, "connection failed"))


def hang_up(sock: socket.socket) -> Conversation:
    """Nothing but the other side's end; what it sends meanwhile stays unread."""
    yield select.EPOLLRDHUP
    raise EOFError("it hung up")
