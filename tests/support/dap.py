"""A small client of VS Code's Debug Adapter Protocol: breaks at lines, in subprocesses too."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from support.processes import soon

BOUND = 60.0
"""Seconds that a debuggee may take to listen, and that one message may be waited for."""
Message = dict[str, Any]


@dataclass
class DebugClient:
    """Debugs what a debugpy server serves, and whatever that tells of; at each stop it evaluates
    `expression`, notes the result, calls `at_stop` and goes on. Ends by with.
    """

    script: str
    line: int
    expression: str = "rank"
    at_stop: Callable[[], object] = lambda: None
    stops: list[str] = field(default_factory=list)
    """What the expression was at each stop."""

    def __post_init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> DebugClient:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        for each in self._sockets:
            with suppress(OSError):  # its peer has closed it
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(BOUND)

    def debug(
        self, port: int, arguments: Mapping[str, Any] | None = None, request: str = "attach"
    ) -> None:
        """Connect as soon as somebody listens there, and speak from then on in a thread. The
        arguments are those of launch.json.
        """
        connection = _connect(port)
        self._sockets.append(connection)
        asked = {"justMyCode": False, "subProcess": True, **(arguments or {})}
        thread = threading.Thread(target=self._speak, args=(connection, request, asked))
        self._threads.append(thread)
        thread.start()

    def wait_for_stops(self, count: int) -> None:
        assert soon(lambda: len(self.stops) >= count, BOUND), self.stops

    def _speak(self, connection: socket.socket, request: str, arguments: Mapping[str, Any]) -> None:
        channel = _Channel(connection)
        channel.ask("initialize", adapterID="tests", linesStartAt1=True, pathFormat="path")
        channel.ask(request, **arguments)
        while (message := channel.receive()) and message.get("event") != "terminated":
            body = message.get("body", {})
            event = message.get("event") or message.get("command")
            if event == "initialized":
                channel.ask(
                    "setBreakpoints",
                    source={"path": self.script},
                    breakpoints=[{"line": self.line}],
                )
                channel.ask("configurationDone")
            elif event == "debugpyAttach":
                self.debug(body["connect"]["port"], body)
            elif event == "stopped":
                thread = body["threadId"]
                channel.ask("stackTrace", threadId=thread)
            elif event == "stackTrace":
                frame = body["stackFrames"][0]
                assert (frame["source"]["path"], frame["line"]) == (self.script, self.line)
                channel.ask("evaluate", expression=self.expression, frameId=frame["id"])
            elif event == "evaluate":
                self.stops.append(body["result"])
                self.at_stop()
                channel.ask("continue", threadId=thread)
        with suppress(OSError):  # the server ends only once it is alone
            connection.shutdown(socket.SHUT_RDWR)


class _Channel:
    """Messages over a connection. Both methods give up quietly once it is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._sequence = 0

    def ask(self, command: str, **arguments: Any) -> None:
        self._sequence += 1
        request = {"seq": self._sequence, "type": "request", "command": command}
        text = json.dumps({**request, "arguments": arguments}).encode()
        try:
            self._connection.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        except OSError:
            return

    def receive(self) -> Message | None:
        try:
            size = 0
            while (line := self._file.readline()) not in (b"", b"\r\n"):
                size = int(line.partition(b":")[2])
            return json.loads(self._file.read(size)) if line else None
        except (OSError, ValueError):
            return None


def _connect(port: int) -> socket.socket:
    deadline = time.monotonic() + BOUND
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), BOUND)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def line_with(script: str, text: str) -> int:
    """The number of the first line that contains this."""
    lines = Path(script).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
