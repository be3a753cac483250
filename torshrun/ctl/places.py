"""Tells apart what torshctl can look at: a run, a torshrun of this host, or a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torsh_runtime.errors import TorshError
from torshrun.ctl.host_jobs import HostJob, find_jobs

if TYPE_CHECKING:  # only commands that name a run need it
    from torshrun.config.job import RendezvousConfig
    from torshrun.ctl.questions import Answered


class Unfit(TorshError):
    """Raised if there is nothing to show, with the reason."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Holds how the agents of a run can be reached."""

    is_given: Callable[[str], bool]
    """A function that returns whether a place to rendezvous is known for a run id."""
    reach: Callable[[str], tuple[RendezvousConfig, float]]
    """A function that returns where a run's nodes rendezvous, and for how many seconds to retry a
    store that fails. Raises ConfigError.
    """
    timeout: float
    """Seconds to wait for the answers of agents."""

    def is_run(self, place: str) -> bool:
        """Return whether `place` names a run, neither a directory nor a torshrun of this host."""
        if os.sep in place or Path(place).exists() or not self.is_given(place):
            return False
        return not (place.isdecimal() and any(job.agent == int(place) for job in find_jobs()))

    def ask(
        self, run_id: str, kinds: Sequence[str], argument: str = "", seconds: float = 0.0
    ) -> Mapping[str, Answered]:
        """Return what the agents of a run answer to each of `kinds` of questions.

        `seconds` is how long they take to prepare the answer, in addition to the timeout.
        """
        from torshrun.ctl.questions import ask_run

        config, patience = self.reach(run_id)
        return ask_run(config, run_id, patience, self.timeout + seconds, kinds, argument)


def jobs_here(place: str | None) -> list[HostJob]:
    """Return the job of the torshrun with this pid, or all jobs of this host for None.

    Raises Unfit if there is none.
    """
    jobs = [job for job in find_jobs() if place is None or job.agent == int(place)]
    if not jobs and place is None:
        raise Unfit("no job of torshrun runs on this host, or none that this user may inspect")
    if not jobs:
        raise Unfit(f"process {place} is not a torshrun on this host that this user may inspect")
    return jobs
