"""Checks this node's GPUs before each round and after each failure."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # few nodes that start jobs have a GPU
    from torshrun.agent.diagnosis import Findings
    from torshrun.config.job import LaunchConfig
    from torshrun.health.gpu_health import GpuReading
    from torshrun.health.gpu_probe import GpuProbe

PATIENCE = 20.0
"""Seconds that the driver may take to answer; its first use may initialise GPUs."""
SCRAPE_SECONDS = 1.0
"""Seconds that it may take while a client waits for metrics."""


def make_checks(
    config: LaunchConfig, environ: Mapping[str, str], say: Callable[[str], None]
) -> GpuChecks:
    """Return the checks of this node's GPUs, which find nothing where there is no NVIDIA GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return GpuChecks(None, say)
    from torshrun.health.gpu_probe import GpuProbe

    probe = GpuProbe(environ)
    return GpuChecks(probe, say, takes_gpus=_takes_gpus(config, environ, probe.usable))


class GpuChecks:
    """Compares each reading with the one before.

    A job of which nothing says that it uses GPUs runs beside a broken one: `takes_gpus` is False.
    """

    def __init__(
        self, probe: GpuProbe | None, say: Callable[[str], None], *, takes_gpus: bool = True
    ) -> None:
        self._probe = probe
        self._say = say
        self._takes_gpus = takes_gpus
        self._before: tuple[GpuReading, ...] = ()
        self._accepted: dict[str, None] = {}
        """Faults beside which workers were started."""
        self._new: dict[str, None] = {}
        """Faults since then. A driver tells of some only once."""
        self._beside: asyncio.Task[None] | None = None
        """The check beside the last start."""
        self._told_failure = ""

    async def before_start(self) -> str:
        """Return why this node can start no workers; "" if nothing shows that.

        What else is worth knowing is told to people. Where nothing says that the job uses GPUs, it
        does not wait for their driver.
        """
        self._new = {}
        if self._takes_gpus:
            return _broken(await self._faults())
        if self._beside is None or self._beside.done():
            self._beside = asyncio.create_task(self._accept())
        return ""

    async def _accept(self) -> None:
        found = await self._faults()
        if new := [fault for fault in found if fault not in self._accepted]:
            self._say(f"{_broken(new)}; workers start, as nothing says that this job uses GPUs")
        self._accepted |= dict.fromkeys(found)

    async def after_failure(self, found: Findings) -> str:
        """Return why no workers can run here after this failure; "" if nothing shows that."""
        new = await self._new_faults()
        may_be_old = self._accepted and _tells_of_gpus(found)
        return _broken([*self._accepted, *new] if may_be_old else new)

    async def before_replacement(self) -> str:
        """Return why no lost worker can be replaced here; "" if nothing shows that."""
        return _broken(await self._new_faults())

    async def _new_faults(self) -> list[str]:
        if self._beside:
            await self._beside
        self._new |= dict.fromkeys(await self._faults())
        return [fault for fault in self._new if fault not in self._accepted]

    async def _faults(self) -> list[str]:
        if self._probe is None:
            return []
        from torshrun.health.gpu_health import faults, remarks

        now = await asyncio.to_thread(self._probe.read, PATIENCE)
        self._tell_failure(self._probe.failure)
        if now is None:
            return []
        found = [*faults(now, self._before)]
        for remark in remarks(now, self._before):
            self._say(remark)
        self._before = now
        return found

    def _tell_failure(self, failure: str) -> None:
        """Say once that the driver cannot be asked, and that it can be again."""
        if failure and not self._told_failure:
            self._say(f"{failure}; their health is not checked")
        elif self._told_failure and not failure:
            self._say("the GPUs' driver answers again; their health is checked")
        self._told_failure = failure

    def hurry(self) -> None:
        """Wait no longer for a driver that is slow, now and later."""
        if self._probe:
            self._probe.hurry()

    def read(self) -> tuple[GpuReading, ...]:
        """Return what is known of the GPUs now; () if nothing is. Any thread may ask."""
        if self._probe is None:
            return ()
        return self._probe.read(SCRAPE_SECONDS, gives_up=False) or ()

    def close(self) -> None:
        if self._beside:
            self._beside.cancel()
        if self._probe:
            self._probe.close()


def _takes_gpus(config: LaunchConfig, environ: Mapping[str, str], usable: int) -> bool:
    """Return whether a job says that it uses GPUs.

    It does by as many workers as GPUs that it may use, by naming GPUs, or by giving each worker
    one.
    """
    names_some = config.virtual_local_rank or bool(environ.get("CUDA_VISIBLE_DEVICES"))
    return names_some or config.nproc_per_node == usable


def _broken(faults: list[str]) -> str:
    return f"a GPU of {os.uname().nodename} is broken: {'; '.join(faults)}" if faults else ""


_OF_GPUS = re.compile(r"cuda|nvidia|nccl|cudnn|cublas|nvml|\bgpus?\b", re.IGNORECASE)


def _tells_of_gpus(found: Findings) -> bool:
    """Return whether GPUs may be at fault: workers' last words are about some, or they hang."""
    from torshrun.failure.kinds import Kind
    from torshrun.failure.last_words import last_words

    exits = found.explained.exits if found.explained else ()
    said = "\n".join(line for exit_ in exits for line in last_words(exit_).lines)
    return found.kind is Kind.HUNG or bool(_OF_GPUS.search(said))
