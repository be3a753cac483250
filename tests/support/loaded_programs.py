"""Programs in Python that are forked from the process of tests: they need not load torch anew."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

_SEED = 67280421310721
"""The one that torch begins with in a new process."""
_READ_BY_TORCH = "TORSH_TORCH_BACKEND"
"""A variable that has an effect while torch is loaded: such a program loads it."""

_KEPT: list[Any] = []
"""Streams of the process that forked, which would print what it has not yet."""


@contextlib.contextmanager
def forked_programs() -> Iterator[None]:
    """Load torch, and have subprocess fork where this interpreter is to run a file or a command.
    What those programs start so is forked as well.
    """
    importlib.import_module("torch._dynamo")  # which optimizers load, too
    with mock.patch("subprocess.Popen", _Forked):
        yield


class _Forked(subprocess.Popen[Any]):
    def __init__(self, args: Sequence[str], **options: Any) -> None:
        environ = options.get("env") or dict(os.environ)
        words = [str(word) for word in args]
        entered, words = (words[1], words[3:]) if words[0] == "nsenter" else ("", words)
        interpreter, *words = (word for word in words if word != "-P")
        is_known = any(word == "-c" or word.endswith(".py") for word in words[:1])
        if interpreter == sys.executable and is_known and _READ_BY_TORCH not in environ:
            # It takes the place of exec: files and folder are by then those of the new program.
            options["preexec_fn"] = lambda: _be_program(words, environ, entered)
        super().__init__(args, **options)


def _be_program(words: list[str], environ: Mapping[str, str], entered: str) -> None:
    """Run the program, and end this process as an interpreter of its own would end."""
    status = 1
    try:
        _become_as_new(environ)
        if entered:
            _enter_network(entered.removeprefix("--net="))
        status = _status_of(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become_as_new(environ: Mapping[str, str]) -> None:
    """Let go of what belongs to the process of tests, and of the pipe that waits for exec."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _KEPT.extend((sys.stdin, sys.stdout, sys.stderr))
    streams = (open(fd, "w" if fd else "r", closefd=False) for fd in range(3))  # noqa: SIM115
    sys.stdin, sys.stdout, sys.stderr = streams
    atexit._clear()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.collect()
    os.environ.clear()
    os.environ.update(environ)
    sys.modules["torch"].manual_seed(_SEED)


def _enter_network(namespace: str) -> None:
    with Path(namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def _status_of(words: list[str]) -> int:
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    is_file = words[0] != "-c"
    sys.path[:0] = [str(Path(words[0]).resolve().parent) if is_file else "", *path]
    sys.argv = words if is_file else ["-c", *words[2:]]
    try:
        if is_file:
            runpy.run_path(words[0], run_name="__main__")
        else:
            exec(words[1], {"__name__": "__main__"})
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    atexit._run_exitfuncs()
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
