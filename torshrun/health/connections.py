"""For how long this host's TCP connections to other hosts have had something to send.

The kernel counts that for each connection (tcp_info's busy time); a socket of its own asks for all
of this network namespace (sock_diag).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_SOCK_DIAG, _BY_FAMILY = 4, 20
_DUMP, _DONE = 0x301, 3
_ESTABLISHED = 1 << 1
_WITH_INFO = 1 << 1
_INFO = 2
_REQUEST = struct.Struct("=BBBxI48x")
_HEADER = struct.Struct("=IHHII")
_MESSAGE_BYTES = 72
_ADDRESSES, _INODE = 8, 68
_BUSY = 168
"""Where tcpi_busy_time is in struct tcp_info, in microseconds."""
_MOST_BYTES = 1 << 22


def busy_times() -> dict[int, float]:
    """Seconds of each connection to another address, by its inode; {} where it cannot be told."""
    found: dict[int, float] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
                asking.settimeout(1.0)
                for message in _messages(asking, family):
                    found.update(_busy_time(message, family))
        except OSError:
            continue
    return found


def _messages(asking: socket.socket, family: int) -> Iterator[bytes]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, _WITH_INFO, _ESTABLISHED)
    header = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0)
    asking.send(header + request)
    came = 0
    while came < _MOST_BYTES:
        content = asking.recv(1 << 16)
        came += len(content)
        place = 0
        while place + _HEADER.size <= len(content):
            length, kind, *_ = _HEADER.unpack_from(content, place)
            if kind != _BY_FAMILY or length < _HEADER.size:
                return
            yield content[place + _HEADER.size : place + length]
            place += (length + 3) & ~3


def _busy_time(message: bytes, family: int) -> dict[int, float]:
    """Of one connection; {} if both ends have the same address, or the kernel does not tell."""
    size = 4 if family == socket.AF_INET else 16
    source = message[_ADDRESSES : _ADDRESSES + size]
    if len(message) < _MESSAGE_BYTES or source == message[_ADDRESSES + 16 :][:size]:
        return {}
    (inode,) = struct.unpack_from("=I", message, _INODE)
    place = _MESSAGE_BYTES
    while place + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, place)
        if kind == _INFO and length >= 4 + _BUSY + 8:
            (microseconds,) = struct.unpack_from("=Q", message, place + 4 + _BUSY)
            return {inode: microseconds / 1e6}
        if length < 4:
            break
        place += (length + 3) & ~3
    return {}


class SendingMeter:
    """Tells of the connections since it was asked before."""

    def __init__(self) -> None:
        self._before = busy_times()

    def read(self, seconds: float) -> float | None:
        """In which part of these seconds the busiest had something to send; None is unknown."""
        now, before = busy_times(), self._before
        self._before = now
        busy = [total - before.get(inode, 0.0) for inode, total in now.items()]
        return min(max(busy) / seconds, 1.0) if busy and seconds > 0 else None
