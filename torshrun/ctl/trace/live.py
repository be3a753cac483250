"""Follows jobs of this host for a while, without disturbing their workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from torsh_runtime.monitoring.layout import file_beside
from torshrun.ctl.host_jobs import HostJob, find_jobs
from torshrun.ctl.places import Unfit
from torshrun.ctl.trace.nodes import Node, nodes_of_traces
from torshrun.health.collecting import Collector, Steps, StepWait
from torshrun.health.traced import read_trace

_TURN = 0.25
"""Seconds between two checks whether the workers still run."""


class Followed:
    """Follows a job of this host, also across restarts."""

    def __init__(self, job: HostJob, say: Callable[[str], None]) -> None:
        self._agent, self._say = job.agent, say
        self._nodes: list[Node] = []
        self._collector: Collector | None = None
        self._job = job
        self._next_turn = 0.0
        self.has_ended = False
        self._open(job)

    @property
    def steps(self) -> list[float]:
        """Return the last step of each worker that has reported one."""
        told = self._collector.steps if self._collector else ()
        return [step for step in told if step is not None]

    @property
    def is_full(self) -> bool:
        return self._collector is not None and self._collector.full_at is not None

    def go_on(self, *, is_wanted: bool) -> float:
        """Collect new records, or only look at steps unless `is_wanted`.

        Returns the seconds until it should be called again.
        """
        now = time.monotonic()
        if now >= self._next_turn:
            self._next_turn = now + _TURN
            self._follow()
        if self._collector is None:
            return _TURN
        return self._collector.collect() if is_wanted else self._collector.watch()

    def finish(self) -> list[Node]:
        """Stop following, and return what was collected, by round."""
        self._close()
        return self._nodes

    def _follow(self) -> None:
        """Check whether the workers are still the same, and follow new ones if not."""
        if self._collector is not None and any(_runs(each.pid) for each in self._job.workers):
            return
        self._close()
        job = next((job for job in find_jobs() if job.agent == self._agent), None)
        if job is None:
            self.has_ended = True
        elif not {each.pid for each in job.workers} & {each.pid for each in self._job.workers}:
            self._open(job)
            if self._collector is not None:
                self._say(f"its workers have been restarted: following attempt {job.round}")

    def _open(self, job: HostJob) -> None:
        """Follow the workers if their recordings exist by now."""
        files = {worker.place[0] for worker in job.workers}
        if len(files) != 1:
            return
        try:
            self._collector, self._job = Collector(file_beside(*files)), job
        except OSError:
            return

    def _close(self) -> None:
        if self._collector is None:
            return
        about = {
            "host": os.uname().nodename,
            "round": self._job.round,
            "ranks": {each.place[1]: each.rank for each in self._job.workers},
            "pids": {each.place[1]: each.pid for each in self._job.workers},
        }
        traced = read_trace(self._collector.finish(about))
        self._collector.close()
        self._collector = None
        if traced is not None:
            self._nodes += nodes_of_traces([traced])


def jobs_of(pids: Sequence[int]) -> list[HostJob]:
    """Return the jobs of these torshruns, or the only one of this host if `pids` is empty.

    Raises Unfit if there is none, or several without a pid.
    """
    found = [job for job in find_jobs() if not pids or job.agent in pids]
    missing = [str(pid) for pid in pids if pid not in {job.agent for job in found}]
    if missing:
        raise Unfit(
            f"process {', '.join(missing)} is not a torshrun on this host that this user may "
            "inspect"
        )
    if not found:
        raise Unfit("no job of torshrun runs on this host, or none that this user may inspect")
    if len(found) > 1 and not pids:
        listed = "; ".join(f"{job.agent}: {job.command}" for job in found)
        raise Unfit(f"several jobs run on this host: name the pid of one ({listed})")
    return found


def follow(
    jobs: Sequence[HostJob], seconds: float, steps: Steps | None, say: Callable[[str], None]
) -> list[Node]:
    """Follow jobs for `seconds`, or until `steps` are over, for which it waits `seconds` at most.

    Ctrl-C ends it early. Raises Unfit if the steps are over already, or do not come.
    """
    until = f"steps {steps.first} to {steps.last}" if steps else f"{seconds:g} s"
    workers = sum(len(job.workers) for job in jobs)
    os.nice(10)  # leave the processors to the workers
    followed = [Followed(job, say) for job in jobs]
    wait, began = StepWait(steps), time.monotonic()
    deadline = began + seconds
    try:
        say(f"following {workers} workers for {until}; Ctrl-C ends it and writes what was recorded")
        while (now := time.monotonic()) < deadline and not all(each.has_ended for each in followed):
            pauses = [each.go_on(is_wanted=wait.has_begun) for each in followed]
            wait.look(step for each in followed for step in each.steps)
            if wait.is_over or any(each.is_full for each in followed):
                break
            time.sleep(max(min(*pauses, deadline - now), 0))
    except KeyboardInterrupt:
        say("interrupted: writing what was recorded")
    if why := wait.why_none(min(round(time.monotonic() - began, 1), seconds)):
        raise Unfit(why)
    return [node for each in followed for node in each.finish()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True
