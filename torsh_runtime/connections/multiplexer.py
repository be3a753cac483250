"""Short conversations with many peers at once, over non-blocking sockets.

A conversation is a generator that yields the epoll events it waits for and returns its result. Each
has a deadline of its own, so a peer that stays silent or sends malformed bytes delays no other, and
needs neither a task nor a thread. Deadlines are moments of time.monotonic().
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any, NamedTuple

from torsh_runtime.closing import Closing
from torsh_runtime.connections.peer import foreign_uid

ProtocolCoroutine = Generator[int, None, Any]
Answer = Callable[[socket.socket], ProtocolCoroutine]
"""Creates the conversation with a peer that has connected. If that raises before it first waits,
the socket is closed at once."""

ADMISSION_SECONDS = 10.0
"""Seconds that a caller may take to authenticate."""
MAX_STRANGERS = 1024
"""The largest number of unauthenticated callers of this host, and of those of other hosts."""
_ACCEPTED_AT_ONCE = 8
"""Callers that are accepted before the existing ones are served again."""


class Refused(Exception):
    """Reports that the other side is not authorized, or violated the protocol."""


class Connection(NamedTuple):
    """Holds the conversation of a socket, which has one at a time.

    `label` is chosen by the code that started it; it is None for a caller, a peer that connected.
    """

    sock: socket.socket
    script: ProtocolCoroutine
    deadline: float
    label: object
    host: str = ""
    """The address of a caller on a different host; otherwise empty."""


class Outcome(NamedTuple):
    """Reports how a conversation ended.

    With an error the socket is closed; otherwise the receiver of the outcome owns it.
    """

    label: object
    sock: socket.socket
    result: Any = None
    error: Exception | None = None


class ConnectionMultiplexer(Closing):
    """Runs all conversations of a thread. Closing it closes the sockets that it still owns.

    A caller has `patience` seconds. If there are more than `most_callers` callers of this host, or
    of all other hosts, the oldest caller of the address that has the most is disconnected.
    """

    def __init__(self, patience: float = 0.0, most_callers: int = 0) -> None:
        self.patience = patience or ADMISSION_SECONDS
        self.most_callers = most_callers or MAX_STRANGERS
        self._poll = select.epoll()
        self._begun: dict[int, Connection] = {}
        self._callers: dict[int, Connection] = {}
        """Callers by their descriptors, the oldest first."""
        self._hosts: Counter[str] = Counter()
        """Number of callers of each host; "" stands for this host."""
        self._listeners: dict[int, tuple[socket.socket, Answer]] = {}

    def close(self) -> None:
        for connection in (*self._begun.values(), *self._callers.values()):
            connection.script.close()
            connection.sock.close()
        self._begun.clear()
        self._callers.clear()
        self._poll.close()

    @property
    def num_callers(self) -> int:
        return len(self._callers)

    @property
    def next_deadline(self) -> float:
        """Return the earliest deadline of all conversations; inf if there are none."""
        oldest = next((connection.deadline for connection in self._callers.values()), float("inf"))
        return min((connection.deadline for connection in self._begun.values()), default=oldest)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a turn has work to do, apart from deadlines."""
        return self._poll.fileno()

    def listen(self, listener: socket.socket, answer: Answer) -> None:
        """Hold the conversation answer(sock) with each peer that connects.

        The caller of this method keeps owning the listener.
        """
        listener.setblocking(False)
        self._listeners[listener.fileno()] = listener, answer
        self._poll.register(listener, select.EPOLLIN)

    def begin(
        self, sock: socket.socket, script: ProtocolCoroutine, deadline: float, label: object = None
    ) -> Outcome | None:
        """Start a conversation, which then owns the socket, with a `deadline` of time.monotonic().

        Returns its outcome if it has already ended, otherwise None.
        """
        connection = Connection(sock, script, deadline, label)
        outcome = self._start(connection)
        if outcome is None:
            self._begun[sock.fileno()] = connection
        return outcome

    def end(self, sock: socket.socket) -> None:
        """End the socket's conversation without closing the socket, which the caller then owns."""
        self._forget(self._begun[sock.fileno()])

    def turn(self, seconds: float, most: int = -1) -> Iterator[Outcome]:
        """Wait for at most `seconds`, continue the conversations that are ready, and yield the
        outcomes of those that have ended.

        Continues at most `most` of them (-1 for all). Raises OSError when this process has no
        descriptor left for a new caller, and there is no caller to disconnect.
        """
        pause = max(min(seconds, self.next_deadline - time.monotonic()), 0.0)
        ready = [number for number, _ in self._poll.poll(pause, most)]
        for number in ready:
            connection = self._callers.get(number) or self._begun.get(number)
            if connection and (outcome := self._advance(connection)) is not None:
                yield outcome
        for number in ready:  # after the others, whose descriptors new ones may get
            if number in self._listeners:
                yield from self._accept(*self._listeners[number])
        yield from self._expire()

    def _accept(self, listener: socket.socket, answer: Answer) -> Iterator[Outcome]:
        for number in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = listener.accept()
            except OSError as error:  # the first is raised even if no caller waits
                if number == 0 and is_lack(error) and not self._drop_caller(self._hosts):
                    raise
                return  # there are no more, or the next turn has room for it
            if (outcome := self._admit(sock, address, answer)) is not None:
                yield outcome

    def _admit(self, sock: socket.socket, address: Any, answer: Answer) -> Outcome | None:
        is_tcp = sock.family != socket.AF_UNIX
        host = foreign(address[0], sock.getsockname()[0]) if is_tcp else ""
        connection = Connection(sock, answer(sock), time.monotonic() + self.patience, None, host)
        if (outcome := self._start(connection)) is not None:
            return outcome
        self._callers[sock.fileno()] = connection
        self._hosts[host] += 1
        alike = [other for other in self._hosts if bool(other) == bool(host)]
        if sum(self._hosts[other] for other in alike) > self.most_callers:
            self._drop_caller(alike)
        return None

    def _drop_caller(self, hosts: Iterable[str]) -> bool:
        """Disconnect the oldest caller of the host with the most; return whether there was one."""
        crowd = max(hosts, key=lambda host: self._hosts[host], default=None)
        caller = next(
            (connection for connection in self._callers.values() if connection.host == crowd), None
        )
        if caller is not None:
            self._forget(caller)
            caller.sock.close()
        return caller is not None

    def _start(self, connection: Connection) -> Outcome | None:
        connection.sock.setblocking(False)
        events = _next(connection)
        if isinstance(events, Outcome):
            return events
        self._poll.register(connection.sock, events)
        return None

    def _advance(self, connection: Connection) -> Outcome | None:
        events = _next(connection, self._forget)
        if isinstance(events, Outcome):
            return events
        self._poll.modify(connection.sock, events)
        return None

    def _expire(self) -> Iterator[Outcome]:
        now = time.monotonic()
        late = [*takewhile(lambda caller: caller.deadline <= now, self._callers.values())]
        late += [connection for connection in self._begun.values() if connection.deadline <= now]
        for connection in late:
            self._forget(connection)
            yield _failed(connection, TimeoutError("it did not answer in time"))

    def _forget(self, connection: Connection) -> None:
        connection.script.close()
        self._poll.unregister(connection.sock)
        if self._callers.pop(connection.sock.fileno(), None) is None:
            del self._begun[connection.sock.fileno()]
            return
        self._hosts[connection.host] -= 1
        if not self._hosts[connection.host]:
            del self._hosts[connection.host]


def _next(
    connection: Connection, before_it_ends: Callable[[Connection], None] = lambda it: None
) -> int | Outcome:
    """Continue a conversation; return the events that it waits for next, or its outcome.

    `before_it_ends` is called if it has ended.
    """
    try:
        return next(connection.script)
    except StopIteration as end:
        before_it_ends(connection)
        return Outcome(connection.label, connection.sock, end.value)
    except (OSError, EOFError, ValueError, Refused) as error:
        before_it_ends(connection)
        return _failed(connection, error)


def _failed(connection: Connection, error: Exception) -> Outcome:
    connection.sock.close()
    return Outcome(connection.label, connection.sock, error=error)


def is_lack(error: OSError) -> bool:
    """Return whether the error means that this process, or the host, has no descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def check_user(sock: socket.socket, secret: bytes) -> None:
    """Raise Refused if the caller is a process of another user of this host.

    Over TCP with a secret all users are accepted. Raises ConnectionError when the caller has gone.
    """
    uid = foreign_uid(sock, secret)
    if uid is not None:
        raise Refused(f"a process of uid {uid}, another user of this host")


def foreign(client: str, own: str) -> str:
    """Return the client's address if it is on a different host; "" for this host."""
    is_here = client == own or client.removeprefix("::ffff:").startswith("127.")
    return "" if is_here else client


def receive(sock: socket.socket, size: int, last: bool = True) -> Generator[int, None, bytes]:
    """Receive exactly `size` bytes.

    Raises EOFError when the other side hangs up. If these are the `last` bytes before the other
    side must wait for an answer, raises Refused when more have been received.
    """
    data = b""
    while len(data) < size:
        data += yield from receive_some(sock, size + last - len(data))
    if len(data) > size:
        raise Refused("it sent more than it was asked for")
    return data


def receive_some(sock: socket.socket, most: int) -> Generator[int, None, bytes]:
    """Receive at least one byte and at most `most`. Raises EOFError when the peer hangs up."""
    while True:
        yield select.EPOLLIN
        with suppress(BlockingIOError):  # a spurious wake-up
            if data := sock.recv(most):
                return data
            raise EOFError("it hung up")


def send(sock: socket.socket, data: bytes) -> Generator[int, None, None]:
    """Send all of the data."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            yield select.EPOLLOUT


def connect(sock: socket.socket, address: tuple[Any, ...]) -> Generator[int, None, None]:
    """Connect the socket. Raises OSError when no process listens there."""
    code = sock.connect_ex(address)
    if code == errno.EINPROGRESS:
        yield select.EPOLLOUT
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, errno.errorcode.get(code, "connection failed"))


def hang_up(sock: socket.socket) -> ProtocolCoroutine:
    """Wait until the other side hangs up, then raise EOFError; its data stays unread."""
    yield select.EPOLLRDHUP
    raise EOFError("it hung up")
