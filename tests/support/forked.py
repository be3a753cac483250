"""Functions run in forked processes, and what they returned, raised or died of."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

HANGS = 500.0
"""Seconds after which the processes are killed, unless a test says more."""


class Raised(NamedTuple):
    """What a rank's function raised, where a test wants to see that; ChildProcessError if its
    process was killed.
    """

    error: BaseException


def run_forked(
    processes: int,
    body: Callable[[int], Any],
    meanwhile: Callable[[list[int]], None] | None = None,
    hangs: float = HANGS,
) -> list[Any]:
    """body(number) in so many processes; what each returned, Raised(error) where it raised or was
    killed, as after `hangs` seconds. `meanwhile` is called here with their pids.
    """
    if "torch" in sys.modules:  # optimizers import this: once, not in each process
        importlib.import_module("torch._dynamo")
    pipes, children = [], []
    for number in range(processes):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _answer(body, number, writer)
            finally:
                os._exit(1)
        os.close(writer)
        pipes.append(reader)
        children.append(child)
    deadline = time.monotonic() + hangs
    try:
        if meanwhile is not None:
            meanwhile(children)
        return [
            _result(reader, child, deadline) for reader, child in zip(pipes, children, strict=True)
        ]
    except BaseException:
        _end(children)
        raise


def tried(body: Callable[[int], Any], number: int) -> Any:
    """What it returns, or Raised(error), which can be pickled."""
    try:
        return body(number)
    except BaseException as error:
        return Raised(_portable(error))


def _answer(body: Callable[[int], Any], number: int, writer: int) -> None:
    if "torch" in sys.modules:  # OpenMP would wait for threads that were not forked
        sys.modules["torch"].set_num_threads(1)
    result = tried(body, number)
    with os.fdopen(writer, "wb") as pipe:
        pickle.dump(result, pipe)
    os._exit(0)


def _end(children: list[int]) -> None:
    for child in children:
        with contextlib.suppress(ChildProcessError):  # it has been waited for
            if os.waitpid(child, os.WNOHANG)[0] == 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _portable(error: BaseException) -> BaseException:
    """Errors with facts do not all survive pickling; those cross as a namespace of them."""
    facts = {"kind": type(error).__name__, "text": str(error), **vars(error)}
    facts["trace"] = traceback.format_exc()
    carrier = RuntimeError(facts["text"])
    carrier.__dict__.update(facts)
    return carrier


def _result(reader: int, child: int, deadline: float) -> Any:
    data = b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            piece = pipe.read(1 << 16)
            if not piece:
                break
            data += piece
        else:
            os.kill(child, signal.SIGKILL)
            data = pickle.dumps(Raised(_portable(TimeoutError("it was not over in time: killed"))))
    _, status = os.waitpid(child, 0)
    if data:
        return pickle.loads(data)  # noqa: S301  (our own child)
    return Raised(_portable(ChildProcessError(ended(status))))


def ended(status: int) -> str:
    """How a process ended that waitpid() has this status of, in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
