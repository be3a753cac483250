"""Looks how this node's workers get on, tells the leader, and judges there who is slow, and why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from torsh_runtime.monitoring import summaries
from torsh_runtime.monitoring.findings import Finding
from torsh_runtime.monitoring.judging import THRESHOLD, Judge
from torsh_runtime.monitoring.summaries import NodeSummary, RankSummary
from torsh_runtime.monitoring.wishes import Wish
from torshrun.agent.round import Round
from torshrun.health.connections import RateMeter
from torshrun.health.gpu_health import GpuReading
from torshrun.health.gpu_usage import usage_of
from torshrun.health.kernel_facts import Process
from torshrun.health.paces import Pace
from torshrun.health.recent import Recent
from torshrun.health.usage import Usage, UsageMeter
from torshrun.workers.group import WorkerGroup

STEPS = 6
"""Number of steps between two looks, unless the user gives an interval."""
_SHORTEST, _LONGEST = 0.1, 10.0  # seconds between two looks then
_SHARE = 0.01
"""The part of a processor that the looks may take then."""


@dataclass(eq=False)
class StragglerMonitor:
    """Follows one round at a time. All methods belong to the loop's thread."""

    group: WorkerGroup
    wish: Wish
    threshold: float
    """Factor by which a slow rank works longer than others; 0: as in judging.THRESHOLD."""
    num_nodes: int
    between: float
    """Seconds between two heartbeats, which carry the summaries to the leader."""
    tell_leader: Callable[[bytes], None]
    replace: Callable[[str], bool]
    """Asks the node of this id to leave, if another can take its place; whether it was asked."""
    announce: Callable[[Finding, str], None]
    """Reports a finding, and what is done about it, or proposed; "" is nothing."""
    read_gpus: Callable[[], Sequence[GpuReading]]
    """Returns what is known of the GPUs; it may wait, and a thread of its own calls it."""
    known: Mapping[str, bytes]
    """Summaries of earlier rounds, by node id, which are ignored."""

    def __post_init__(self) -> None:
        self._watching: asyncio.Task[None] | None = None
        self._number = 0
        self._node = 0
        self._judge = self._new_judge()
        self._paces: list[Pace] = []

    def start(self, a_round: Round, node: int) -> None:
        """Follow this round's workers, on the node of this rank, until stop()."""
        self.stop()
        descriptor = a_round.recordings.descriptor
        if descriptor is None:
            return
        self._node, self._judge = node, self._new_judge()
        self._paces = [
            Pace(worker.rank, Recent(descriptor, place), Process(worker.pid))
            for place, worker in enumerate(self.group.workers)
        ]
        self._watching = self.group.loop.create_task(self._watch())
        # What goes wrong there is an internal error of a callback, and not forgotten.
        self._watching.add_done_callback(lambda task: task.cancelled() or task.result())

    def stop(self) -> None:
        if self._watching:
            self._watching.cancel()
            self._watching = None
            self.tell_leader(b"")

    def judge(self, by_node: Mapping[str, bytes]) -> None:
        """Judge the last summaries of all nodes, by node id; this node leads."""
        found = {
            name: summaries.decode(content)
            for name, content in by_node.items()
            if content != self.known.get(name)
        }
        nodes = {name: each for name, each in found.items() if each is not None}
        ids = {each.node: name for name, each in nodes.items()}
        for finding in self._judge.observe(nodes.values()):
            self.announce(finding, self._sequel(finding, ids))

    def _new_judge(self) -> Judge:
        return Judge(self.threshold or THRESHOLD, self.wish.limits)

    def _sequel(self, finding: Finding, ids: Mapping[int, str]) -> str:
        if finding.is_gone or finding.kind == "resource" or finding.node not in ids:
            return ""
        name = ids[finding.node]
        if self.wish.replaces and finding.is_lasting and self.replace(name):
            return f"Node {name} is drained: another waits to take its place"
        if self.num_nodes > 1 and finding.is_lasting:
            return f"Consider another node in its place: torshctl drain RUN {name}"
        return ""

    async def _watch(self) -> None:
        usage = UsageMeter() if self.wish.limits else None
        rates = RateMeter() if self.num_nodes > 1 else None
        cost = 0.0
        while True:
            await asyncio.sleep(self._pause(cost))
            if self.group.pump.stalled:  # this process stood still
                continue
            gpu = usage_of(await asyncio.to_thread(self.read_gpus))
            began = time.thread_time()
            shares = usage.read() if usage else Usage(None, None, None)
            rate = rates.read() if rates else None
            self._number += 1
            told = NodeSummary(
                *(self._number, self._node, self._look(), *shares),
                gpu=gpu.busiest,
                rate=rate,
                gpu_is_throttled=gpu.is_throttled,
            )
            self.tell_leader(summaries.encode(told))
            cost = time.thread_time() - began

    def _pause(self, cost: float) -> float:
        """Return the seconds until the next look; `cost` is the processor time of the last one."""
        if self.wish.interval:
            return max(self.wish.interval, self.between)
        step = max((pace.step_seconds for pace in self._paces), default=0.0)
        return min(max(STEPS * step, _SHORTEST, cost / _SHARE, self.between), _LONGEST)

    def _look(self) -> list[RankSummary]:
        """Return the summaries of the ranks that have taken steps since the last look."""
        found = []
        for pace, worker in zip(self._paces, self.group.workers, strict=False):
            with suppress(OSError):  # what they have noted cannot be read
                if worker.alive and (summary := pace.look()):
                    found.append(summary)
        return found
