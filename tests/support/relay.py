"""A relay in front of a server that loses requests or answers on purpose."""

from __future__ import annotations

import asyncio
import re
from typing import Literal

Loses = Literal["nothing", "request", "answer"]


class Relay:
    """Carries HTTP requests to a port of this machine; use it in `async with`, on one loop."""

    def __init__(self, port: int) -> None:
        self.endpoint = ""
        self.lost = 0
        """How many requests or answers have been lost."""
        self._port = port
        self._loses: Loses = "nothing"
        self._what = b""
        self._times = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def lose(self, loses: Loses, what: str, times: int = 1) -> None:
        """Lose the next requests whose path contains `what`, before or after they are served."""
        self._loses, self._what, self._times = loses, what.encode(), times

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.endpoint = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, forth}
        answers = asyncio.create_task(_pump(back, writer))
        try:
            while (loses := await self._request(reader, forth)) == "nothing":
                pass
            answers.cancel()
            await asyncio.wait((answers,))
            if loses == "answer":
                await back.read(1 << 20)
        except (OSError, EOFError):
            pass
        finally:
            answers.cancel()
            writer.transport.abort()
            forth.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, forth: asyncio.StreamWriter) -> Loses:
        """Carry one request, and say what becomes of it."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length
        body = await reader.readexactly(int(length[1]))
        loses = self._fate(head)
        if loses != "request":
            forth.write(head + body)
        return loses

    def _fate(self, head: bytes) -> Loses:
        if not (self._times and self._what in head.split(b"\r\n")[0]):
            return "nothing"
        self._times -= 1
        self.lost += 1
        return self._loses


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 20):
        writer.write(data)
    writer.transport.abort()
