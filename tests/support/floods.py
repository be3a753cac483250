"""Very many connections that come to no good end."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle, islice

MANNERS = ("data", "reset", "half", "silent")
"""Nonsense, then gone; the same with a reset; the beginning of an answer and no more; nothing."""
RATE = 1000.0
"""Connections a second at each address."""
_HELD = 800
"""Connections that are kept open."""
_RESET = struct.pack("ii", 1, 0)


def flood(
    ports: Sequence[int], manner: str, number: int, begun: Callable[[], None] = lambda: None
) -> int:
    """Connect so often to each port of this host, RATE times a second; how often that worked.
    `begun` is called after the first hundred or so.
    """
    held: deque[socket.socket] = deque()
    due, made = time.monotonic(), 0
    for turn, port in enumerate(islice(cycle(ports), number * len(ports))):
        due = max(due + 1 / RATE / len(ports), time.monotonic() - 0.1)
        time.sleep(max(due - time.monotonic(), 0.0))
        if turn == 100:
            begun()
        sock = socket.socket()
        with suppress(OSError):  # it was cut off, rightly
            sock.settimeout(1.0)
            sock.connect(("127.0.0.1", port))
            made += 1
            _say(sock, manner)
        if manner in ("half", "silent"):
            held.append(sock)
            sock = held.popleft() if len(held) > _HELD else socket.socket()
        sock.close()
    for sock in held:
        sock.close()
    return made


def _say(sock: socket.socket, manner: str) -> None:
    if manner in ("data", "reset"):
        sock.sendall(b"x" * 500)
    if manner == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    if manner == "half":
        sock.sendall(b"\0\0\0\x44\x92\xc4")
