"""What torshctl looks at: a run, by its store, a torshrun of this host, or a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torsh_runtime.errors import TorshError
from torshrun.ctl.host_jobs import HostJob, find_jobs

if TYPE_CHECKING:  # few look at runs
    from torshrun.config.job import RendezvousConfig
    from torshrun.ctl.questions import Answered


class Unfit(TorshError):
    """There is nothing to show, and why."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How a run is reached whose agents are asked."""

    is_given: Callable[[str], bool]
    """Whether it is said where the nodes of this run meet."""
    reach: Callable[[str], tuple[RendezvousConfig, float]]
    """Where they do, and for how many seconds a store that fails is tried again. ConfigError."""
    timeout: float
    """Seconds to wait for their answers."""

    def is_run(self, place: str) -> bool:
        """Whether this is to be taken for a run: no directory, and no torshrun of this host."""
        if os.sep in place or Path(place).exists() or not self.is_given(place):
            return False
        return not (place.isdecimal() and any(job.agent == int(place) for job in find_jobs()))

    def ask(
        self, run_id: str, kinds: Sequence[str], argument: str = "", seconds: float = 0.0
    ) -> Mapping[str, Answered]:
        """What the agents of a run answer to these kinds of questions, for which they take so many
        seconds."""
        from torshrun.ctl.questions import ask_run

        config, patience = self.reach(run_id)
        return ask_run(config, run_id, patience, self.timeout + seconds, kinds, argument)


def jobs_here(place: str | None) -> list[HostJob]:
    """The job of the torshrun of this pid, or (None) all of this host. Unfit if there is none."""
    jobs = [job for job in find_jobs() if place is None or job.agent == int(place)]
    if not jobs and place is None:
        raise Unfit("no job of torshrun's runs on this host, or none that this user may look at")
    if not jobs:
        raise Unfit(f"process {place} is no torshrun of this host that this user may look at")
    return jobs
