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
from torshrun.topology.gpus import visible

_PROGRAM = str(Path(__file__).with_name("nvml.py"))
_MOST_BYTES = 1 << 20
_IMPATIENT = 0.05
"""Seconds to wait for an answer that was late before."""


class GpuProbe:
    """Reads the GPUs that workers may use; any thread may ask.

    Where there is no NVIDIA GPU, nothing is started and nothing is known.
    """

    def __init__(self, environ: Mapping[str, str], root: Path = ROOT) -> None:
        self._lock = threading.Lock()
        self._rest = b""
        self._is_asked = False
        """Whether a question has no answer yet."""
        self.failure = ""
        """Reason why nothing is known any more; "" if there is none."""
        self._process: subprocess.Popen[bytes] | None = None
        is_nvidia = any((root / "dev").glob("nvidia[0-9]*"))
        self.places = tuple(gpu.pci for gpu in visible(environ, root)) if is_nvidia else ()
        if self.places:
            with suppress(OSError):
                self._process = _start(environ)

    @property
    def knows(self) -> bool:
        """Return whether it can be asked."""
        return self._process is not None

    def read(self, seconds: float, *, gives_up: bool = True) -> tuple[GpuReading, ...]:
        """Return what is known of each GPU; () if nothing is within `seconds`.

        Then the process is ended if this call `gives_up`, and nothing is known from then on. Else
        later calls that do not give up hardly wait, until the answer has come.
        """
        if not self._lock.acquire(timeout=seconds):
            return ()
        try:
            if self._process is None:
                return ()
            patience = _IMPATIENT if self._is_asked and not gives_up else seconds
            return readings(self._ask(self._process, patience), self.places)
        except TimeoutError as error:
            if gives_up:
                self._fail(error)
        except (OSError, ValueError) as error:
            self._fail(error)
        finally:
            self._lock.release()
        return ()

    def _fail(self, error: Exception) -> None:
        self.failure = f"the GPUs' driver cannot be asked: {error}"
        self._end()

    def close(self) -> None:
        """End the process. One that hangs in its driver is left to the kernel."""
        if process := self._process:
            process.kill()  # who waits for its answer waits no longer
        with self._lock:
            self._end()

    def _ask(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        """Return the answer. Raise OSError or ValueError if there is none, or it tells of one."""
        assert process.stdin is not None
        if self._is_asked:  # somebody who has gone since: it may be old
            self._line(process, seconds)
        process.stdin.write(b"\n")
        process.stdin.flush()
        self._is_asked = True
        told = json.loads(self._line(process, seconds))
        if not isinstance(told, dict) or told.get("error"):
            raise OSError(told["error"] if isinstance(told, dict) else "it makes no sense")
        return told

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """Return the next line. Raise OSError if none comes in time, or the process has ended."""
        assert process.stdout is not None
        until, waiting = time.monotonic() + seconds, select.poll()
        waiting.register(process.stdout, select.POLLIN)
        while b"\n" not in self._rest:
            left = max(0.0, until - time.monotonic())
            if not waiting.poll(1000 * left):
                raise TimeoutError(f"it has not answered for {seconds:g} s")
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


def _start(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        start_new_session=True,  # signals of a terminal are for the job
    )
