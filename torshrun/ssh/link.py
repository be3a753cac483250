"""Connects to one host by ssh, and exchanges frames with it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torsh_runtime.errors import TorshError
from torsh_runtime.framing import DamagedFrame
from torshrun.ssh import frames
from torshrun.ssh.hostfile import Host
from torshrun.ssh.reasons import explain
from torshrun.ssh.remote import HERE
from torshrun.ssh.verdict import Ended
from torshrun.text import printable
from torshrun.workers.logs.pump import LogPump

_CHUNK = 65536
_LONGEST_GREETING = 1 << 20
"""The most bytes that a host's shell may print before torshrun answers."""
_TAIL = 8192
"""Bytes of ssh's stderr that are kept."""
_END_BOUND = 5.0
"""Seconds that ssh may take to end when it has nothing left to do."""

_STRANGE = "it does not speak torshrun's protocol"


class HostLost(TorshError):
    """Raised if the host could not be started, or if nothing more will come from it."""


@dataclass(eq=False, kw_only=True)
class Link:
    """Runs ssh to one host. Frames are sent in order, and only one task may read. Close it."""

    host: Host
    command: tuple[str, ...]
    silence: float
    pump: LogPump
    address: str = ""
    """The address by which the host was reached. Empty if unknown."""
    _process: Process | None = None
    _output: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    _frames: frames.Frames = field(default_factory=frames.Frames)
    _ready: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    _said: bytes = b""
    _listening: asyncio.Task[None] | None = None
    _sinks: dict[bytes, int] = field(default_factory=dict)

    # ---- the start

    async def open(self, version: str, timeout: float) -> None:
        """Start ssh, and wait until the same version of torshrun answers there.

        Raises HostLost.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._start()
                hello = await self._hello()
        except TimeoutError:
            raise HostLost(f"no answer within {timeout:g} s: {explain(None, self._words())}")
        there = hello.get("version")
        if not isinstance(there, str):
            raise HostLost(_STRANGE)
        if there != version:
            there = printable(there)
            raise HostLost(
                f"torshrun has version {there} there and {version} here: install the same one, or "
                "name the Python that has it by --remote-python"
            )
        self.address = HERE if self.host.is_here else ip_or_empty(hello.get("address"))

    async def _start(self) -> None:
        program = self.command[0]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,  # otherwise Ctrl-C in the terminal would end ssh first
            )
        except OSError as error:
            hint = "; install OpenSSH's client" if program == "ssh" else ""
            raise HostLost(f"{program} cannot be started: {error.strerror}{hint}") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._output = self._process.stdout
        self._listening = asyncio.create_task(self._listen(self._process.stderr))

    async def _hello(self) -> dict[str, Any]:
        greeting = b""
        while frames.MARK not in greeting:
            data = await self._output.read(_CHUNK)
            if not data:
                raise HostLost(await self._why(greeting[-_TAIL:]))
            greeting += data
            if len(greeting) > _LONGEST_GREETING:
                raise HostLost("its shell does not stop printing: see ~/.bashrc there")
        self._take(greeting.partition(frames.MARK)[2])
        kind, content = await self._next()
        if kind != frames.HELLO:
            raise HostLost(_STRANGE)
        shown = self.pump.open_shown(f"{self.host.label}: ")
        ends = shown[0].source.end, shown[-1].source.end
        self._sinks = dict(zip((frames.STDOUT, frames.STDERR), ends, strict=True))
        for fd in self._sinks.values():
            os.set_blocking(fd, False)
        return _facts(content)

    async def _listen(self, complaints: asyncio.StreamReader) -> None:
        while data := await complaints.read(_CHUNK):
            self._said = (self._said + data)[-_TAIL:]

    # ---- afterwards

    def send(self, data: bytes) -> None:
        """Send frames as soon as ssh takes them. Does nothing if it is gone."""
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def ask(self, data: bytes, kind: bytes) -> dict[str, Any]:
        """Send frames and return the answer of kind `kind`. Raises HostLost."""
        self.send(data)
        while True:
            got, content = await self._next()
            if got == kind:
                return _facts(content)
            if got == frames.EXIT:
                code = _code(_facts(content))
                raise HostLost(f"torshrun has ended there with exit code {code}; see above")
            await self._show(got, content)

    async def follow(self) -> Ended:
        """Show the output until the agent has ended. Raises HostLost."""
        while True:
            kind, content = await self._next()
            if kind != frames.EXIT:
                await self._show(kind, content)
                continue
            facts = _facts(content)
            begun = facts.get("begun")
            if not isinstance(begun, bool):
                raise HostLost(_STRANGE)
            return Ended(self.host.label, _code(facts), begun)

    async def close(self) -> None:
        """End what is left of ssh here. torshrun on the host notices the end of its input."""
        process = self._process
        if process and process.stdin:
            process.stdin.close()
        if not self._sinks or not await self._has_ended(
            _END_BOUND
        ):  # a host that never answered has no output to lose
            self.kill()
            await self._has_ended(_END_BOUND)
        if self._listening:
            self._listening.cancel()
        for fd in set(self._sinks.values()):
            os.close(fd)
        self._sinks = {}

    def kill(self) -> None:
        """End ssh at once. The task that follows it gets an error."""
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _next(self) -> tuple[bytes, bytes]:
        """Return the next frame. Only time spent listening counts as silence."""
        while not self._ready:
            try:
                async with asyncio.timeout(self.silence):
                    data = await self._output.read(_CHUNK)
            except TimeoutError:
                self.kill()
                raise HostLost(f"nothing was heard from it for {self.silence:g} s") from None
            if not data:
                raise HostLost(await self._why(b""))
            self._take(data)
        return self._ready.popleft()

    def _take(self, data: bytes) -> None:
        try:
            self._ready.extend(self._frames.feed(data))
        except DamagedFrame as error:
            raise HostLost(f"{_STRANGE}: {error}") from None

    async def _show(self, kind: bytes, content: bytes) -> None:
        if kind in self._sinks:
            await _write(self._sinks[kind], content)

    async def _why(self, greeting: bytes) -> str:
        ended = await self._has_ended(_END_BOUND)
        if self._listening:
            await asyncio.wait([self._listening], timeout=0.2)
        code = self._process.returncode if self._process and ended else None
        return explain(code, self._words() or greeting.decode(errors="replace"))

    async def _has_ended(self, bound: float) -> bool:
        if self._process:
            try:
                async with asyncio.timeout(bound):
                    await self._process.wait()
            except TimeoutError:
                return False
        return True

    def _words(self) -> str:
        return self._said.decode(errors="replace")


def ip_or_empty(text: object) -> str:
    """Return the text if it is an IP address, else ""."""
    try:
        return str(ipaddress.ip_address(text)) if isinstance(text, str) else ""
    except ValueError:
        return ""


def _facts(content: bytes) -> dict[str, Any]:
    """Decode the JSON of a host. Raises HostLost if it is invalid."""
    with contextlib.suppress(ValueError, RecursionError):
        facts = json.loads(content)
        if isinstance(facts, dict):
            return facts
    raise HostLost(_STRANGE)


def _code(facts: dict[str, Any]) -> int:
    """Return the exit code in `facts`. Raises HostLost if no process can end with it."""
    code = facts.get("code")
    if type(code) is int and 0 <= code <= 255:
        return code
    said = str(code)[:20] if isinstance(code, int) else "not a number"
    raise HostLost(f"{_STRANGE}: its exit code is {said}, and not one of 0 to 255")


async def _write(fd: int, data: bytes) -> None:
    """Write all of the data, however long a reader takes."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            with _writable(fd) as ready:
                await ready


@contextlib.contextmanager
def _writable(fd: int) -> Iterator[asyncio.Future[None]]:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(fd, on_ready)
    try:
        yield ready
    finally:
        loop.remove_writer(fd)
