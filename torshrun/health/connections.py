"""Measures how fast this host's TCP connections to other hosts deliver.

The kernel measures that for each connection (tcp_info's delivery rate: when it was last limited by
the network, and not by who writes); a socket asks for all of this network namespace (sock_diag).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

_SOCK_DIAG, _BY_FAMILY = 4, 20
_DUMP, _DONE = 0x301, 3
_ESTABLISHED = 1 << 1
_WITH_INFO = 1 << 1
_INFO = 2
_REQUEST = struct.Struct("=BBBxI48x")
_HEADER = struct.Struct("=IHHII")
_MESSAGE_BYTES = 72
_ADDRESSES, _INODE = 8, 68
_ACKED, _RATE = 120, 160
"""Offsets of tcpi_bytes_acked and tcpi_delivery_rate, in bytes a second, in struct tcp_info."""
_MOST_BYTES = 1 << 22
_ENOUGH = 1 << 17
"""Bytes of a connection between two looks, below which its rate says nothing."""
_SHARE = 1 / 4
"""The share of the bytes of the busiest connection, below which a rate says nothing."""


class Connection(NamedTuple):
    """Describes a connection to another address."""

    acked: int
    """Bytes that have arrived."""
    rate: int
    """Bytes a second."""


def connections() -> dict[int, Connection]:
    """Return the connections by their inodes; {} where they are not known."""
    found: dict[int, Connection] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
                asking.settimeout(1.0)
                for message in _messages(asking, family):
                    found.update(_read(message, family))
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


def _read(message: bytes, family: int) -> dict[int, Connection]:
    """Return one connection; {} if both ends have the same address, or the kernel does not tell."""
    size = 4 if family == socket.AF_INET else 16
    source = message[_ADDRESSES : _ADDRESSES + size]
    if len(message) < _MESSAGE_BYTES or source == message[_ADDRESSES + 16 :][:size]:
        return {}
    (inode,) = struct.unpack_from("=I", message, _INODE)
    place = _MESSAGE_BYTES
    while place + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, place)
        if kind == _INFO and length >= 4 + _RATE + 8:
            (acked,) = struct.unpack_from("=Q", message, place + 4 + _ACKED)
            (rate,) = struct.unpack_from("=Q", message, place + 4 + _RATE)
            return {inode: Connection(acked, rate)}
        if length < 4:
            break
        place += (length + 3) & ~3
    return {}


class RateMeter:
    """Measures the rates of connections since the previous call."""

    def __init__(self) -> None:
        self._before = connections()

    def read(self) -> float | None:
        """Return the bytes a second of the slowest connection in much use; None is unknown."""
        now, before = connections(), self._before
        self._before = now
        sent = {
            inode: each.acked - (before[inode].acked if inode in before else 0)
            for inode, each in now.items()
        }
        enough = max(max(sent.values(), default=0) * _SHARE, _ENOUGH)
        rates = [now[inode].rate for inode, count in sent.items() if count >= enough]
        return float(min(rates)) if rates else None
