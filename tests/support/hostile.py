"""Clients that say all kinds of nonsense, and what must not come of it.

A Surface is something that listens, in a process of its own. A script is a number of calls on it;
each call connects, perhaps is honest in its handshake, says a few things and leaves in some way.
"""

from __future__ import annotations

import math
import os
import random
import socket
import struct
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
from hypothesis import strategies as st
from support.processes import soon

GUARD = 60.0
MOST_BYTES = 128 << 20
"""By how much the process may have grown in the end."""
_LINGER_NOT = struct.pack("ii", 1, 0)

# --- what is said ---

_LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=40)
    | st.sampled_from(["put", "delete", "hostile/a", "", "\0", b"", -1, 0, 2**63, 1e308])
)
_TREE = st.recursive(_LEAF, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
_OF_KIND: Mapping[type, st.SearchStrategy[Any]] = {
    str: st.sampled_from(["hostile/a", "hostile/b", "hostile/", "", "\0"]) | st.text(max_size=20),
    bytes: st.binary(max_size=40),
    int: st.sampled_from([0, 1, -1, 2**63 - 1, 2**64 - 1]),
    float: st.sampled_from([0.0, 0.001, 1e308, -1.0, math.inf, math.nan]),
    list: st.lists(_TREE, max_size=4),
}
_RAW = st.binary(max_size=100) | st.sampled_from(
    [
        b"",
        b"\xc1",
        b"\x91" * 3000 + b"\xc0",  # deep
        b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1
        b"\xdd\x00\x0f\xff\xff" + b"\x90" * 4000,
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a\x01",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xdb\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b'{"a":' * 200,
    ]
)


def packed(value: object) -> bytes:
    """msgpack; what does not go into it becomes nothing."""
    try:
        data: bytes = msgpack.packb(value)
    except (ValueError, OverflowError, TypeError):
        data = b"\xc0"
    return data


TREES = _TREE.map(packed)
PAYLOADS = TREES | _RAW
"""Bodies of messages, of no protocol in particular."""


def requests(operations: Mapping[str, Sequence[type]]) -> st.SearchStrategy[bytes]:
    """Lists that begin as [number, operation, [arguments]], most of them as they should be."""

    def of(op: str) -> st.SearchStrategy[bytes]:
        right = st.tuples(*[_OF_KIND[kind] for kind in operations[op]])
        wrong = st.lists(_TREE, max_size=4) | _TREE
        numbers = st.sampled_from([1, 2**32]) | _LEAF
        return st.tuples(numbers, st.just(op), right | wrong).map(lambda parts: packed(list(parts)))

    return st.sampled_from(sorted(operations)).flatmap(of)


def mostly(
    those: st.SearchStrategy[bytes], others: st.SearchStrategy[bytes] = PAYLOADS
) -> st.SearchStrategy[bytes]:
    """Three of four are `those`."""
    return st.integers(0, 3).flatmap(lambda number: those if number else others)


class Saying(NamedTuple):
    """One message, and how it is put on the wire."""

    manner: str
    """"framed"; "lying": a wrong length before it; "cut": the end is missing; "bare": without a
    length; "forged": with a wrong MAC; "twice": the same bytes again; "split": in two parts.
    """
    payload: bytes
    number: int


class Call(NamedTuple):
    """One connection."""

    honest: bool
    """Whether the handshake is right, if this caller can do that."""
    sayings: list[Saying]
    leave: str
    """"close", "reset", "half": say that there is no more and hear what comes; "stay" until the end
    of the script.
    """


MANNERS = (*["framed"] * 7, "lying", "cut", "bare", "forged", "twice", "split")


IN_A_CALL = 2
"""Messages: who has said one that is wrong is often heard no more."""


def scripts(
    payloads: st.SearchStrategy[bytes], families: int, kinship: int
) -> st.SearchStrategy[list[Call]]:
    """Scripts of so many families of calls. Of a family one call is drawn, and the others are made
    of it: to draw a byte costs a thousand times as much as to change it.
    """
    saying = st.builds(
        Saying, st.sampled_from(MANNERS), payloads, st.integers(0, 2**32 - 1) | st.integers(0, 300)
    )
    call = st.builds(
        Call,
        st.booleans(),
        st.lists(saying, min_size=IN_A_CALL, max_size=IN_A_CALL),
        st.sampled_from(["close", "close", "reset", "half", "stay"]),
    )
    drawn = st.tuples(call, st.integers(0, 2**32))
    return st.lists(drawn, min_size=families, max_size=families).map(
        lambda all_drawn: [call for each in all_drawn for call in _family(*each, kinship)]
    )


def _family(call: Call, seed: int, kinship: int) -> list[Call]:
    """The call, and others like it."""
    chance = random.Random(seed)
    more = [
        call._replace(
            honest=chance.random() < 0.7, sayings=[_like(s, chance) for s in call.sayings]
        )
        for _ in range(kinship - 1)
    ]
    return [call, *more]


def _like(saying: Saying, chance: random.Random) -> Saying:
    """Another one that differs by a few bytes, or in its manner."""
    data = bytearray(saying.payload)
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                data[at:at] = chance.randbytes(chance.randrange(1, 4))
            case 1:
                data[at : at + 1] = chance.randbytes(1)
            case 2:
                del data[at : at + chance.randrange(4)]
    return saying._replace(manner=chance.choice(MANNERS), payload=bytes(data))


def framed(saying: Saying) -> bytes:
    """With the length that the manner wants: 4 bytes, big-endian."""
    length = saying.number if saying.manner == "lying" else len(saying.payload)
    frame = length.to_bytes(4, "big") + saying.payload
    match saying.manner:
        case "bare":
            return saying.payload
        case "cut":
            return frame[: saying.number % len(frame)]
        case "twice":
            return frame + frame
    return frame


def unframed(saying: Saying) -> bytes:
    """For protocols whose messages have a fixed length."""
    cut = saying.number % (len(saying.payload) + 1) if saying.manner == "cut" else None
    return saying.payload[:cut] * (2 if saying.manner == "twice" else 1)


# --- whom it is said to ---


class Account(NamedTuple):
    """What a process holds."""

    descriptors: int
    threads: int
    resident: int
    """Bytes."""
    tasks: int


class Surface(ABC):
    """Something that listens. A new one needs `serve`, `connect`, `works` and `payloads`; where a
    handshake can be passed, `greet` and `sign` too.
    """

    name: str
    payloads: st.SearchStrategy[bytes] = PAYLOADS

    # In the process that serves:

    @abstractmethod
    def serve(self) -> tuple[Any, Callable[[], int], Callable[[], None]]:
        """Begin to listen, in threads: what the callers need to know, a function that counts tasks
        under way, and one that closes everything.
        """

    # In the test's:

    def frame(self, saying: Saying) -> bytes:
        """The bytes of it."""
        return framed(saying)

    @abstractmethod
    def connect(self, known: Any) -> socket.socket:
        """A new connection; `known` is what serve gave."""

    def greet(self, sock: socket.socket, known: Any) -> Any:
        """Pass the handshake; what `sign` needs then. None if there is none to pass."""
        return None

    def sign(self, session: Any, data: bytes, saying: Saying) -> bytes:
        """The frame as it goes over a connection whose handshake was passed."""
        return data

    @abstractmethod
    def works(self, known: Any) -> None:
        """Fail unless the surface's own client is served; asked again and again."""

    def end(self, known: Any) -> None:
        """The same, once, in the end: where that ends the serving."""
        return

    def hears(self, known: Any, said: bytes, honest: bool) -> None:
        """Fail if a caller was told what it must not know."""
        return


class Target:
    """A surface that is being served. Close it."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self._pipe, there = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._pipe.close()
            _serve(surface, there)
        there.close()
        self.known = self._answer()

    def account(self) -> Account:
        """What the process holds now."""
        process = Path("/proc", str(self.pid))
        self._pipe.send("tasks")
        tasks = self._answer()
        pages = int((process / "statm").read_text().split()[1])
        descriptors = len(list((process / "fd").iterdir()))
        threads = len(list((process / "task").iterdir()))
        return Account(descriptors, threads, pages * os.sysconf("SC_PAGE_SIZE"), tasks)

    def play(self, script: Sequence[Call]) -> None:
        """All calls of the script."""
        staying: list[socket.socket] = []
        try:
            for call in script:
                sock = self.surface.connect(self.known)
                staying.append(sock)
                try:
                    self._talk(sock, call)
                    self._leave(sock, call, staying)
                except TimeoutError:
                    raise
                except OSError:
                    pass  # it was cut off, rightly
        finally:
            for sock in staying:
                sock.close()

    def settles(self, before: Account) -> None:
        """Fail unless the process soon holds no more than before."""

        def settled() -> bool:
            now = self.account()
            return all(now[kind] <= before[kind] for kind in (0, 1, 3))

        assert soon(settled, GUARD), f"{before} has become {self.account()}"

    def close(self) -> None:
        """End the process; fail unless it ends well."""
        self._pipe.send("close")
        ended = self._pipe.poll(GUARD) and self._pipe.recv()
        if not ended:
            os.kill(self.pid, 9)
        _, status = os.waitpid(self.pid, 0)
        self._pipe.close()
        assert ended == "closed", ended
        assert status == 0

    def _answer(self) -> Any:
        assert self._pipe.poll(GUARD), "the process that serves hangs"
        return self._pipe.recv()

    def _talk(self, sock: socket.socket, call: Call) -> None:
        session = self.surface.greet(sock, self.known) if call.honest else None
        for saying in call.sayings:
            data = self.surface.frame(saying)
            if session is not None:
                data = self.surface.sign(session, data, saying)
            half = len(data) // 2 if saying.manner == "split" else len(data)
            sock.sendall(data[:half])
            sock.sendall(data[half:])
        if call.leave == "half":
            sock.shutdown(socket.SHUT_WR)
            self.surface.hears(self.known, _all_of(sock), session is not None)

    def _leave(self, sock: socket.socket, call: Call, staying: list[socket.socket]) -> None:
        if call.leave == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        if call.leave != "stay":
            staying.remove(sock)
            sock.close()


def _all_of(sock: socket.socket) -> bytes:
    """What comes until the other side hangs up."""
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    return data


def _serve(surface: Surface, pipe: Connection) -> None:
    status = 1
    try:
        known, tasks, close = surface.serve()
        failures: list[str] = []
        threading.excepthook = lambda hook: failures.append(str(hook.exc_value))
        pipe.send(known)
        while (asked := pipe.recv()) == "tasks":
            pipe.send(tasks())
        close()
        pipe.send("closed" if asked == "close" and not failures else failures)
        status = 0
    except EOFError:
        pass  # the test has ended
    except Exception:
        pipe.send(traceback.format_exc())
    finally:
        os._exit(status)
