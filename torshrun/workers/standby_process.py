"""The agent's end of a process that waits: messages both ways, and what is known of it.

The other end, and the messages' form, is startup/torsh_standby.py. It runs what users import, so
nothing that it says is taken for true before it has been checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torsh_runtime.framing import Frames, frame

_CREDENTIALS = struct.Struct("=3i")
_PIECE = 1 << 16
_BUFFER = 1 << 20
"""Bytes that are asked for as a socket's buffer: a whole environment goes at once."""


class StandbyProcess:
    """Represents a process that waits to become a worker."""

    def __init__(
        self,
        worker_id: int,
        loop: asyncio.AbstractEventLoop,
        hear: Callable[[StandbyProcess, Mapping[str, Any]], None],
        lose: Callable[[StandbyProcess], None],
    ) -> None:
        """Create the connection to the process.

        `hear` is called with each message of the process, and `lose` when no more can come. Raise
        OSError if no descriptor is left.
        """
        self.worker_id = worker_id
        """What the keeper knows it by."""
        self.pid = 0
        """0 until it has said something."""
        self.is_claimed = False
        """Whether the keeper has been told of it, and so tells of its end."""
        self._loop, self._hear, self._lose = loop, hear, lose
        self._incoming = Frames()
        self._mine, self.end = socket.socketpair()
        """`end` is for the process."""
        self._mine.setblocking(False)
        self._mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for option in (socket.SO_SNDBUF, getattr(socket, "SO_SNDBUFFORCE", 32)):
            with contextlib.suppress(OSError):  # forcing is for root
                self._mine.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        loop.add_reader(self._mine, self._receive)

    def send(self, facts: Mapping[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Send a message; return whether all of it went. If not, the process is of no more use."""
        data = frame(json.dumps(facts).encode())
        try:
            return socket.send_fds(self._mine, [data], descriptors) == len(data)
        except OSError:
            return False

    def close(self) -> None:
        """Hear nothing more of it; it ends, unless it has been taken."""
        if self._mine.fileno() >= 0:
            self._loop.remove_reader(self._mine)
        self._mine.close()
        self.end.close()

    def _receive(self) -> None:
        for message in self._read():
            self._hear(self, message)

    def _read(self) -> Iterator[Mapping[str, Any]]:
        """Yield the messages that the next piece completes.

        Only a single piece is read: a process that sends without end must not keep the loop from
        others.
        """
        try:
            self._take_in()
            while (said := self._incoming.take()) is not None:
                message = json.loads(said)
                yield message if isinstance(message, dict) else {}
        except BlockingIOError:
            return
        except (OSError, EOFError, ValueError, RecursionError):
            if self._mine.fileno() >= 0:
                self._loop.remove_reader(self._mine)
                self._lose(self)

    def _take_in(self) -> None:
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        data, ancillary, _, _ = self._mine.recvmsg(_PIECE, room, socket.MSG_DONTWAIT)
        if not data:
            raise EOFError
        self._incoming.feed(data)
        for level, kind, carried in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.pid = _CREDENTIALS.unpack(carried)[0]
