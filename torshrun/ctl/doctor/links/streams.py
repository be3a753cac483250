"""Sends bytes between two doctors and measures how fast they arrive.

Deadlines are moments of time.monotonic(). OSError (which includes TimeoutError) and EOFError mean
that the connection failed.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from contextlib import suppress
from statistics import median

from torsh_runtime.store.sockets import remaining

PINGS = 20
WARM_UP, WINDOW = 0.2, 0.5
"""Seconds of a stream in which TCP reaches its speed, and seconds that are measured then."""
_PING_BYTES = 64
_CHUNK = 1 << 20
_NO_LINGER = struct.pack("ii", 1, 0)


def ping(sock: socket.socket, deadline: float) -> float:
    """Return the seconds for 64 bytes to the other side and back, the median of PINGS."""
    message = bytes(_PING_BYTES)
    taken = []
    for _ in range(PINGS):
        began = time.perf_counter()
        sock.sendall(message)
        _read_exactly(sock, _PING_BYTES, deadline)
        taken.append(time.perf_counter() - began)
    return median(taken)


def answer_pings(sock: socket.socket, deadline: float) -> None:
    """Send back the other side's pings."""
    for _ in range(PINGS):
        sock.sendall(_read_exactly(sock, _PING_BYTES, deadline))


def pour(sock: socket.socket, deadline: float) -> None:
    """Send until the other side says something or hangs up.

    Raises TimeoutError if it does neither.
    """
    block = os.urandom(_CHUNK)  # random, so that nothing on the way can compress it
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT)
    while True:
        ready = poll.poll(1000 * remaining(deadline))
        if any(event & ~select.POLLOUT for _, event in ready):
            return
        with suppress(BlockingIOError):
            sock.send(block)


def drink(sock: socket.socket, deadline: float) -> float:
    """Return the bytes per second that arrive over WINDOW seconds, after WARM_UP seconds."""
    buffer = bytearray(_CHUNK)
    sock.settimeout(remaining(deadline))
    if not sock.recv_into(buffer, 1):
        raise EOFError("it hung up")
    _count(sock, buffer, min(time.monotonic() + WARM_UP, deadline))
    began = time.monotonic()
    total = _count(sock, buffer, min(began + WINDOW, deadline))
    return total / (time.monotonic() - began)


def _count(sock: socket.socket, buffer: bytearray, until: float) -> int:
    """Return the number of bytes that arrive until then."""
    total = 0
    with suppress(TimeoutError):
        while True:
            sock.settimeout(remaining(until))
            got = sock.recv_into(buffer)
            if not got:
                raise EOFError("it hung up")
            total += got
    return total


def drain(sock: socket.socket, deadline: float) -> None:
    """Discard what still arrives, until the other side hangs up."""
    buffer = bytearray(_CHUNK)
    with suppress(OSError):
        while True:
            sock.settimeout(remaining(deadline))
            if not sock.recv_into(buffer):
                return


def leave_at_once(sock: socket.socket) -> None:
    """Discard unsent bytes when the socket is closed, so that they disturb nothing."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _read_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(remaining(deadline))
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError("it hung up")
        data += part
    return data
