"""Asks nvidia-smi how busy this node's GPUs are, and whether their driver slows them down."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torshrun.health.gpu_health import SLOWED, place_of
from torshrun.procfs import ROOT
from torshrun.topology.gpus import visible

_QUERY = "--query-gpu=pci.bus_id,utilization.gpu,clocks_throttle_reasons.active"
_FORMAT = "--format=csv,noheader,nounits"
_EVERY = "--loop-ms=1000"
_FRESH = 5.0
"""Seconds for which a line counts."""
_MOST_BYTES = 1 << 16


class GpuUsage(NamedTuple):
    """Describes the use of the GPUs that workers may use."""

    busiest: float | None
    """The part of the last second in which the busiest one ran kernels, 0 to 1; None is unknown."""
    is_throttled: bool
    """True if one of them is slowed down by heat or for lack of power."""


UNKNOWN = GpuUsage(None, is_throttled=False)


class GpuMeter:
    """Follows an nvidia-smi of its own, so that a driver that hangs does not stop this process.

    Where there is no NVIDIA GPU, or no nvidia-smi, nothing is started and nothing is known.
    """

    def __init__(self, environ: Mapping[str, str], root: Path = ROOT) -> None:
        self._places = {place_of(gpu.pci) for gpu in visible(environ, root)}
        self._told: dict[str, tuple[float, GpuUsage]] = {}
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        program = shutil.which("nvidia-smi", path=environ.get("PATH"))
        if self._places and program:
            with suppress(OSError):
                self._process = _start(program)

    def read(self) -> GpuUsage:
        """Return what it reported last; never waits."""
        for line in self._lines():
            with suppress(ValueError):  # a line that says why nothing can be told
                place, usage = _parsed(line)
                self._told[place] = time.monotonic(), usage
        usages = [
            usage
            for place, (at, usage) in self._told.items()
            if time.monotonic() - at < _FRESH and self._places & {place, ""}
        ]
        shares = [each.busiest for each in usages if each.busiest is not None]
        return GpuUsage(max(shares, default=None), any(each.is_throttled for each in usages))

    def close(self) -> None:
        """End it. One that hangs in its driver is left to the kernel."""
        if self._process is None:
            return
        self._process.kill()
        if self._process.stdout:
            self._process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._process = None

    def _lines(self) -> list[str]:
        if self._process is None or self._process.stdout is None:
            return []
        try:
            came = os.read(self._process.stdout.fileno(), _MOST_BYTES)
        except OSError:  # nothing new
            return []
        *lines, self._rest = (self._rest + came).split(b"\n")
        self._rest = self._rest[-_MOST_BYTES:]
        return [line.decode("ascii", "replace") for line in lines]


def _start(program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [program, _QUERY, _FORMAT, _EVERY],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals of a terminal are for the job
    )
    if process.stdout:
        os.set_blocking(process.stdout.fileno(), False)
    return process


def _parsed(line: str) -> tuple[str, GpuUsage]:
    """Parse a line like "00000000:3B:00.0, 87, 0x0000000000000004"; what is unknown is [N/A]."""
    pci, share, reasons = (each.strip() for each in line.split(","))
    known = int(reasons, 16) if reasons.startswith("0x") else 0
    busy = min(int(share), 100) / 100 if share.isdecimal() else None
    return place_of(pci), GpuUsage(busy, any(known & flag for flag in SLOWED))
