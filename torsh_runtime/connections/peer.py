"""Finds out which user's process is at the other end of a connection within this host.

For a Unix socket the kernel reports it (SO_PEERCRED). For TCP the kernel's table of connections
does: through netlink (sock_diag(7)), or in /proc/net/tcp where netlink is refused. Only an
established connection that some process holds has an owner there; the remainder of a closed one is
listed as root's.

Within a host processes communicate only with processes of the same user or of root, unless they
prove by a secret that they belong together. Peers on other hosts have no user here.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.errors import StoreError

_CREDENTIALS = struct.Struct("3i")  # struct ucred
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ASKED = struct.Struct("=BBBBI")  # struct inet_diag_req_v2, without its id
_ID = struct.Struct("!HH16s16s")  # struct inet_diag_sockid, without interface and cookie
_INTERFACE = struct.Struct("=III")
_ANSWER = struct.Struct("=BBBB48sIIIII")  # struct inet_diag_msg
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_NO_COOKIE = 0xFFFFFFFF
_ALL_STATES, _ESTABLISHED = 0xFFFFFFFF, 1
_MAPPED = bytes(10) + b"\xff\xff"  # prefix of IPv4 addresses in IPv6 sockets
_UNOWNED = -1
"""Stands for the user of a connection of this host that no process holds, or that is unknown."""


class _End(NamedTuple):
    """Describes an end of a TCP connection."""

    family: socket.AddressFamily
    host: bytes
    """The address, packed."""
    port: int
    interface: int
    """The interface of a link-local address; otherwise 0."""

    @property
    def is_loopback(self) -> bool:
        return self.host[0] == 127 if len(self.host) == 4 else self.host == bytes(15) + b"\x01"


def is_same_user(uid: int) -> bool:
    """Return whether processes of that user are trusted: it is this process's user, or root."""
    return uid in (os.geteuid(), 0)


def uid_of_peer(sock: socket.socket) -> int | None:
    """Return the user id of the process at the other end.

    Returns None when the process is on a different host, or has gone.
    """
    found = _lookup(sock)
    return None if found == _UNOWNED else found


def pid_of_peer(sock: socket.socket) -> int:
    """Return the id of the process that connected, or began to listen, at the other end of a Unix
    socket."""
    return _credentials(sock)[0]


def foreign_uid(sock: socket.socket, secret: bytes) -> int | None:
    """Return the peer's user id if it is another user of this host and no secret authenticates it.

    Returns None otherwise. Raises ConnectionError when the peer is on this host and no process
    holds its end. A server's end has an owner only after the connection was accepted; so call this
    after its first bytes were received.
    """
    if secret and sock.family != socket.AF_UNIX:
        return None
    uid = _lookup(sock)
    if uid == _UNOWNED:
        raise ConnectionAbortedError("the kernel names no process at the other end")
    return None if uid is None or is_same_user(uid) else uid


def check_server(sock: socket.socket, secret: bytes) -> None:
    """Raise StoreError if another user serves there. Raises ConnectionError as foreign_uid does."""
    uid = foreign_uid(sock, secret)
    if uid is not None:
        raise StoreError(
            f"it is served by {user(uid)}, and this process is run by {user(os.geteuid())}. Choose "
            f"another port or name, or give both sides the same secret."
        )


def is_private_address(sock: socket.socket) -> bool:
    """Return whether no other host can reach the address to which the socket is bound."""
    return sock.family == socket.AF_UNIX or _end(sock.getsockname()).is_loopback


def is_private(sock: socket.socket) -> bool:
    """Return whether the server at the other end is a process of this user or root, at an address
    that no other host can reach.
    """
    if sock.family != socket.AF_UNIX and not _end(sock.getpeername()).is_loopback:
        return False
    uid = uid_of_peer(sock)
    return uid is not None and is_same_user(uid)


def user(uid: int) -> str:
    """Return a description of the user for people."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _lookup(sock: socket.socket) -> int | None:
    """Return the user id of the owner of the other end.

    Returns _UNOWNED if it is on this host without an owner, None if it is on a different host.
    """
    if sock.family == socket.AF_UNIX:
        uid = _credentials(sock)[1]
        return uid if uid >= 0 else _UNOWNED
    own, other = _end(sock.getsockname()), _end(sock.getpeername())
    try:
        found = _by_netlink(other, own)
    except OSError:  # netlink is refused here
        found = next(_by_table(other, own), None)
    return _UNOWNED if found is None and _is_of_this_host(other) else found


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """Return the ids of the process and the user at the other end of a Unix socket."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def _end(address: tuple[str, int, int, int] | tuple[str, int]) -> _End:
    if len(address) == 2:
        return _End(socket.AF_INET, socket.inet_pton(socket.AF_INET, address[0]), address[1], 0)
    host = socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])
    if host.startswith(_MAPPED):
        return _End(socket.AF_INET, host[len(_MAPPED) :], address[1], 0)
    return _End(socket.AF_INET6, host, address[1], address[3])


def _is_of_this_host(end: _End) -> bool:
    """Return whether the address is one of this host."""
    if end.is_loopback:
        return True
    text = socket.inet_ntop(end.family, end.host)
    address = (text, 9) if end.family == socket.AF_INET else (text, 9, 0, end.interface)
    with suppress(OSError), socket.socket(end.family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return _end(probe.getsockname()).host == end.host
    return False


def _by_netlink(of: _End, to: _End) -> int | None:
    """Return the user id of the owner of the connection's end `of`; None if the kernel knows none.

    Raises OSError where netlink is refused.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
        asking.settimeout(1.0)  # the kernel answers within the call
        asking.send(_question(of, to))
        return _owner(asking.recv(8192))


def _question(of: _End, to: _End) -> bytes:
    body = _ASKED.pack(of.family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
    body += _ID.pack(of.port, to.port, of.host, to.host)
    body += _INTERFACE.pack(of.interface, _NO_COOKIE, _NO_COOKIE)
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0)
    return header + body


def _owner(answer: bytes) -> int | None:
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        return None  # the kernel knows no such connection
    _, state, _, _, _, _, _, _, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return int(uid) if state == _ESTABLISHED and inode else _UNOWNED


def _by_table(of: _End, to: _End) -> Iterator[int]:
    """Yield what _by_netlink returns, from /proc/net/tcp and tcp6.

    These list every connection of the host, so reading them is slow.
    """
    for name in ("tcp", "tcp6"):
        wanted = [_hex(of, name), _hex(to, name)]
        with suppress(OSError), Path("/proc/net", name).open() as table:
            for fields in map(str.split, table):
                if fields[1:3] == wanted:
                    owned = int(fields[3], 16) == _ESTABLISHED and fields[9] != "0"
                    yield int(fields[7]) if owned else _UNOWNED


def _hex(end: _End, table: str) -> str:
    """Return an address as the table writes it: words in the machine's byte order."""
    packed = _MAPPED + end.host if table == "tcp6" and len(end.host) == 4 else end.host
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end.port:04X}"
