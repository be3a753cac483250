"""Asks NVML about this node's GPUs, in a process of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torshrun.health.gpu_health import GpuReading, readings
from torshrun.procfs import ROOT
from torshrun.topology.gpus import of_nvidia, visible

_PROGRAM = str(Path(__file__).with_name("nvml.py"))
_MOST_BYTES = 1 << 20
_IMPATIENT = 0.05
"""Seconds to wait for an answer that was late before."""
_GLANCE = 0.1
"""Seconds after which a wait looks whether it is to end."""


class GpuProbe:
    """Reads the GPUs that workers may use; any thread may ask.

    Where there is no NVIDIA GPU, nothing is started and nothing is known.
    """

    def __init__(self, environ: Mapping[str, str], root: Path = ROOT) -> None:
        self._lock = threading.Lock()
        self._rest = b""
        self._is_asked = False
        """Whether a question has no answer yet."""
        self._is_late = False
        """Whether a call that was patient has got no answer yet."""
        self._is_hurried = False
        self.failure = ""
        """Reason why nothing is known at present; "" if there is none."""
        self._process: subprocess.Popen[bytes] | None = None
        self._listed = environ.get("CUDA_VISIBLE_DEVICES")
        self._node = of_nvidia(root)
        self.usable = len(visible(environ, root)) if self._node else 0
        """The number of GPUs that workers may use, as /dev has them."""
        if self.usable:
            with suppress(OSError):
                self._process = _start(environ)

    @property
    def knows(self) -> bool:
        """Return whether it can be asked."""
        return self._process is not None

    def read(self, seconds: float, *, gives_up: bool = True) -> tuple[GpuReading, ...] | None:
        """Return what is known of each GPU; None if nothing is within `seconds`.

        Then later calls hardly wait, until the answer has come; those that do not give up do not
        make calls that do less patient. hurry() ends the wait of calls that give up. A process that
        has ended is not asked again.
        """
        if not self._lock.acquire(timeout=seconds):
            return None
        try:
            if self._process is None:
                return None
            is_known_late = self._is_late if gives_up else self._is_asked
            patience = _IMPATIENT if is_known_late else seconds
            told = self._ask(self._process, patience, may_be_hurried=gives_up)
            self._is_late, self.failure = False, ""
            return readings(told, self._node, self._listed)
        except TimeoutError as error:
            if gives_up and not (self._is_hurried or self._is_late):
                self._is_late, self.failure = True, _failure(error)
        except (OSError, ValueError) as error:
            self.failure = _failure(error)
            self._end()
        finally:
            self._lock.release()
        return None

    def hurry(self) -> None:
        """End waits for a driver that is slow, now and later."""
        self._is_hurried = True

    def close(self) -> None:
        """End the process. One that hangs in its driver is left to the kernel."""
        self.hurry()
        if process := self._process:
            process.kill()  # who waits for its answer waits no longer
        if self._lock.acquire(timeout=2.0):
            self._end()
            self._lock.release()

    def _ask(
        self, process: subprocess.Popen[bytes], seconds: float, *, may_be_hurried: bool
    ) -> dict[str, Any]:
        """Return the answer. Raise OSError or ValueError if there is none, or it tells of one."""
        assert process.stdin is not None
        until = time.monotonic() + seconds
        if self._is_asked:  # somebody who has gone since: it may be old
            self._line(process, until, may_be_hurried)
        process.stdin.write(b"\n")
        process.stdin.flush()
        self._is_asked = True
        told = json.loads(self._line(process, until, may_be_hurried))
        if not isinstance(told, dict) or told.get("error"):
            raise OSError(told["error"] if isinstance(told, dict) else "it makes no sense")
        return told

    def _line(self, process: subprocess.Popen[bytes], until: float, may_be_hurried: bool) -> bytes:
        """Return the next line. Raise OSError if none comes in time, or the process has ended."""
        assert process.stdout is not None
        begun, waiting = time.monotonic(), select.poll()
        waiting.register(process.stdout, select.POLLIN)
        while b"\n" not in self._rest:
            left = max(0.0, until - time.monotonic())
            is_over = left == 0 or (may_be_hurried and self._is_hurried)
            if not waiting.poll(0 if is_over else 1000 * min(left, _GLANCE)):
                if is_over:
                    raise TimeoutError(f"it has not answered for {until - begun:.1f} s")
                continue
            came = os.read(process.stdout.fileno(), 1 << 16)
            if not came or len(self._rest) > _MOST_BYTES:
                raise OSError("the process that asks it has ended")
            self._rest += came
        self._is_asked = False
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)


def _failure(error: Exception) -> str:
    return f"the GPUs' driver cannot be asked: {error}"


def command() -> list[str]:
    """Return the command with which this process asks NVML; see nvml.py."""
    return [sys.executable, "-I", "-S", _PROGRAM, str(os.getpid())]


def _start(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        start_new_session=True,  # signals of a terminal are for the job
    )
