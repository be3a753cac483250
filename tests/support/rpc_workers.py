"""Processes that take part in remote calls and do what a test tells them, line by line."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from support.ports import free_ports

_MAIN = Path(__file__).with_name("rpc_worker_main.py")
_ANSWER, _ERROR = "answer: ", "error: "


class RpcWorker:
    """One. What it is told runs in one namespace, which has `tr`, `np` and `sub`, a subscription to
    "policy"; a value that an expression has must be a literal."""

    def __init__(self, name: str, rank: int, place: str, within: Sequence[str] = ()) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [*within, sys.executable, "-P", str(_MAIN), name, str(rank), place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, code: str) -> None:
        """Have it do this; answer() is what comes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(repr(code) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Of the first thing told that has not been answered. An error is an AssertionError."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                return ast.literal_eval(line.removeprefix(_ANSWER))
            if line.startswith(_ERROR):
                raise AssertionError(f"{self.name}: {ast.literal_eval(line.removeprefix(_ERROR))}")
        raise AssertionError(f"{self.name} has ended")

    def ask(self, code: str) -> Any:
        """Tell, and wait for the answer."""
        self.tell(code)
        return self.answer()

    def signal(self, signo: int) -> None:
        os.kill(self.pid, signo)

    def kill(self) -> None:
        """SIGKILL; returns when it has ended."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End it, whatever it does; may be called again."""
        with suppress(ValueError):  # it has been closed
            self.kill()


class RpcWorkers:
    """A first one, which serves the store and should stay, and others that come and go."""

    def __init__(self, host: str = "127.0.0.1", within: Sequence[str] = ()) -> None:
        self._place = f"tcp://{host}:{free_ports(1)[0]}"
        self._held = ExitStack()
        self.first = self.start("first", 0, within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def start(self, name: str, rank: int = -1, within: Sequence[str] = ()) -> RpcWorker:
        """One more; it answers when it has come."""
        worker = RpcWorker(name, rank, self._place, within)
        self._held.callback(worker.close)
        return worker
