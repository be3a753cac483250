"""Modules that run as `python -m` runs them, but in a fork that need not load torch anew."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any


def start_forked(
    command: Sequence[str], *, env: Mapping[str, str], **options: Any
) -> subprocess.Popen[str]:
    """Like Popen() of `python -m MODULE ARGUMENTS...`, but no interpreter is started."""
    importlib.import_module("torch.distributed.launcher.api")
    before = _descriptors()  # they stay: libuv, which TCPStore uses, keeps some for each process

    def run() -> None:
        for number in _descriptors() - before:
            with suppress(OSError):
                os.close(number)  # Popen waits until its own pipe is closed
        _exit(_outcome(command[2], command[3:], env))

    # torchrun looks at all frames below its own, which are few in a thread.
    with ThreadPoolExecutor(1) as thread:
        options |= {"env": env, "preexec_fn": run}
        return thread.submit(subprocess.Popen, command, **options).result()


def _descriptors() -> set[int]:
    return {number for number in map(int, os.listdir("/proc/self/fd")) if number > 2}


def _outcome(module: str, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code."""
    try:
        _be_new(environ)
        sys.argv = [module, *argv]
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _be_new(environ: Mapping[str, str]) -> None:
    """Undo what pytest has done to this process."""
    gc.enable()
    os.environ.clear()
    os.environ.update(environ)
    sys.path.insert(0, str(Path.cwd()))
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering=1) for number, mode in enumerate("rww")
    )
    for handler in [*logging.root.handlers]:
        logging.root.removeHandler(handler)
    for signo in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(signo, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
