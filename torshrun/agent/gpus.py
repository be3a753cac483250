"""Checks this node's GPUs before each round and after each failure."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # few nodes that start jobs have a GPU
    from torshrun.health.gpu_health import GpuReading
    from torshrun.health.gpu_probe import GpuProbe

PATIENCE = 20.0
"""Seconds that the driver may take to answer; its first use may initialise GPUs."""
SCRAPE_SECONDS = 1.0
"""Seconds that it may take while a client waits for metrics."""


def make_probe(environ: Mapping[str, str]) -> GpuProbe | None:
    """Return what asks the GPUs' driver; None if there is no NVIDIA GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    from torshrun.health.gpu_probe import GpuProbe

    return GpuProbe(environ)


class GpuChecks:
    """Compares each reading with the one before."""

    def __init__(self, probe: GpuProbe | None, say: Callable[[str], None]) -> None:
        self._probe = probe
        self._say = say
        self._before: tuple[GpuReading, ...] = ()

    async def find_faults(self) -> str:
        """Return why this node can run no workers on its GPUs; "" if nothing shows that.

        What else is worth knowing is told to people.
        """
        if self._probe is None or not self._probe.knows:
            return ""
        from torshrun.health.gpu_health import faults, remarks

        now = await asyncio.to_thread(self._probe.read, PATIENCE)
        if self._probe.failure:
            self._say(f"{self._probe.failure}; their health is not checked")
            return ""
        found = [*faults(now, self._before)]
        for remark in remarks(now, self._before):
            self._say(remark)
        self._before = now
        return f"a GPU of {os.uname().nodename} is broken: {'; '.join(found)}" if found else ""

    def read(self) -> tuple[GpuReading, ...]:
        """Return what is known of the GPUs now; () if nothing is. Any thread may ask."""
        return self._probe.read(SCRAPE_SECONDS, gives_up=False) if self._probe else ()

    def close(self) -> None:
        if self._probe:
            self._probe.close()
