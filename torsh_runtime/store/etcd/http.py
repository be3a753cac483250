"""HTTP/1.1 as etcd's gateway uses it: one request at a time on a persistent connection.

Only answers with a Content-Length or in chunks (RFC 9112, sections 6.2 and 7.1) are understood, as
that server sends no others. Everything else counts as a broken connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NamedTuple, Self

from torsh_runtime.store.etcd.config import Address

if TYPE_CHECKING:
    import ssl

MAX_BODY = 256 << 20
"""Largest answer, in bytes."""
_SECOND_ADDRESS_AFTER = 0.25  # seconds before a second address of a name is tried
_QUIET, _BETWEEN, _PROBES = 5, 2, 3  # TCP keep-alive: a host that is gone is noticed in 11 s


class _Head(NamedTuple):
    status: int
    length: int
    """Bytes of the body; -1 if it is sent in chunks."""


class HttpConnection:
    """Represents a connection to a server.

    Its methods raise OSError or EOFError when it fails. Then, and when a request was cancelled, it
    must be aborted.
    """

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._last_answer = False

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None) -> Self:
        """Connect to the first of the name's addresses that accepts the connection."""
        numeric = address.host.replace(".", "").isdecimal() or ":" in address.host
        reader, writer = await asyncio.open_connection(
            address.host,
            address.port,
            ssl=tls if address.secure else None,
            happy_eyeballs_delay=None if numeric else _SECOND_ADDRESS_AFTER,
        )
        _notice_dead_hosts(writer.get_extra_info("socket"))
        return cls(address, reader, writer)

    def is_usable(self) -> bool:
        """Return whether another request may be sent, as far as this side knows."""
        return not (self._last_answer or self._reader.at_eof() or self._writer.is_closing())

    def abort(self) -> None:
        """Cut the connection, which makes pending requests fail."""
        self._writer.transport.abort()

    async def exchange(self, path: str, fields: str, body: bytes) -> tuple[int, bytes]:
        """Send a POST request, and return the status and the body of the answer.

        `fields` as for send().
        """
        await self.send(path, fields, body)
        status, length = await self._head()
        if length >= 0:
            return status, await self._reader.readexactly(length)
        answer = bytearray()
        async for chunk in self._chunks():
            answer += chunk
            _check_size(len(answer))
        return status, bytes(answer)

    async def send(self, path: str, fields: str, body: bytes) -> None:
        """Send a POST request. `fields` are further header lines, each with its line end."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self.address}\r\nContent-Type: application/json\r\n"
            f"{fields}Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def stream(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the answer's status with each line of its body, as the lines arrive."""
        status, length = await self._head()
        if length >= 0:
            yield status, await self._reader.readexactly(length)
            return
        rest = b""
        async for chunk in self._chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            _check_size(len(rest))
            for line in filter(None, lines):
                yield status, line
        if rest:
            yield status, rest

    async def _head(self) -> _Head:
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            version, status = lines[0].split(" ", 2)[:2]
            named = (line.partition(":") for line in lines[1:-2])
            fields = {name.lower(): value.strip().lower() for name, _, value in named}
            self._last_answer = version != "HTTP/1.1" or fields.get("connection") == "close"
            if fields.get("transfer-encoding") == "chunked":
                return _Head(int(status), -1)
            return _Head(int(status), _check_size(int(fields["content-length"])))
        except (ValueError, KeyError, asyncio.LimitOverrunError):
            raise _not_http() from None

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body's chunks, and read the trailer that follows them."""
        while size := await self._chunk_size():
            yield await self._reader.readexactly(size)
            await self._line()
        while await self._line():
            pass

    async def _chunk_size(self) -> int:
        try:
            return _check_size(int((await self._line()).partition(b";")[0], 16))
        except ValueError:
            raise _not_http() from None

    async def _line(self) -> bytes:
        try:
            return (await self._reader.readuntil(b"\r\n"))[:-2]
        except asyncio.LimitOverrunError:
            raise _not_http() from None


def _check_size(size: int) -> int:
    if size < 0:
        raise _not_http()
    if size > MAX_BODY:
        raise ConnectionError(f"an answer exceeds {MAX_BODY} bytes. List a narrower prefix")
    return size


def _not_http() -> ConnectionError:
    return ConnectionError("what answers there is not etcd's HTTP gateway")


def _notice_dead_hosts(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
