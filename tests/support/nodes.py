"""Agents of one job, all on this machine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from support.launcher import Launcher
from support.ports import free_port
from support.processes import soon

Process = subprocess.Popen[str]
QUICK = "last_call_timeout=0.5,ttl=3,join_timeout=20,close_timeout=5"


class Node:
    """One agent, whose output is read as it comes."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._lines: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream,))
            for stream in (process.stdout, process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Sequence[str]) -> None:
        self._lines.extend(stream)

    @property
    def output(self) -> str:
        """What it and its workers have written so far, on both streams."""
        return "".join(self._lines)

    def wait_for(self, pattern: str, seconds: float = 30) -> str:
        """Until this has been written; what was."""
        found: list[re.Match[str] | None] = [None]

        def is_there() -> bool:
            found[0] = re.search(pattern, self.output)
            return found[0] is not None or self.process.poll() is not None

        soon(is_there, seconds)
        soon(is_there, 0.2)
        assert found[0], f"{pattern!r} is not in:\n{self.output}"
        return found[0][0]

    def send(self, signo: signal.Signals) -> None:
        self.process.send_signal(signo)

    def end(self, seconds: float = 30) -> tuple[int, str]:
        """Its exit code, once it has ended, and all its output."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.output}") from None
        self.close()
        return self.process.returncode, self.output

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()


class Job:
    """A job whose nodes are started one by one. Ends by with."""

    def __init__(self, launcher: Launcher, *options: str) -> None:
        """`options` are those of all nodes; where they meet is among them."""
        self.launcher = launcher
        self._options = options
        self.nodes: list[Node] = []

    @classmethod
    def over_tcp(cls, launcher: Launcher, nnodes: str, *options: str, conf: str = QUICK) -> Job:
        """One that meets at a port of this machine, which its first node will serve."""
        meet = ("--rdzv-backend=tcp", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
        return cls(launcher, f"--nnodes={nnodes}", *meet, f"--rdzv-conf={conf}", *options)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.close()

    def control(self, *argv: str) -> str:
        """What torshctl writes, once it has ended well."""
        meet = [each for each in self._options if each.startswith(("--rdzv-b", "--rdzv-e"))]
        ended = subprocess.run(
            [sys.executable, "-m", "torshrun.ctl", *argv, *meet],
            env=self.launcher.environ,
            cwd=self.launcher.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def start(self, *argv: str, within: Sequence[str] = ()) -> Node:
        """Start one more node; `within` is what goes before its command."""
        node = Node(self.launcher.start(*self._options, *argv, within=within))
        self.nodes.append(node)
        return node
