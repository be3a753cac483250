"""Looks for bottlenecks of a process without an agent, in a thread: compares its steps with earlier
ones."""

from __future__ import annotations

import logging
import math
import re
import threading
from pathlib import Path

from torsh_runtime.monitoring.analysis import breakdowns, own_record
from torsh_runtime.monitoring.bottleneck_config import (
    Bottleneck,
    BottleneckDetectionConfig,
    call,
)
from torsh_runtime.monitoring.joining import joined
from torsh_runtime.monitoring.judging import Judge
from torsh_runtime.monitoring.spans import spans
from torsh_runtime.monitoring.summaries import NodeSummary, RankSummary
from torsh_runtime.monitoring.summing import summary_of

_log = logging.getLogger("torsh_runtime.monitoring")
_IDLE = slice(3, 5)
"""Ticks in which processors were idle, or waited for a disk, in the first line of /proc/stat."""


class OwnPast:
    """Looks for bottlenecks until stop(). Other ranks, networks and GPUs are not considered."""

    def __init__(self, config: BottleneckDetectionConfig, rank: int) -> None:
        self._config, self._rank = config, rank
        self._judge = Judge(limits=config.wish.limits)
        self._until = -math.inf
        self._number = 0
        self._ticks = _ticks()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="torsh-bottlenecks", daemon=True).start()

    def stop(self) -> None:
        """Stop looking for bottlenecks."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._config.wish.interval):
            self.look()

    def look(self) -> None:
        """Look for bottlenecks once."""
        self._number += 1
        ranks = [summary] if (summary := self._summary()) else []
        told = NodeSummary(self._number, 0, ranks, cpu=self._cpu(), memory=_memory())
        for finding in self._judge.observe([told]):
            name, facts = finding.event()
            if self._config.enable_notifications:
                _log.warning("%s", facts["text"])
                if self._config.callback:
                    call(self._config.callback, Bottleneck(name, facts, facts["text"]))

    def _summary(self) -> RankSummary | None:
        held = own_record()
        calls = joined({0: held})[0]
        found = spans({0: calls}, {0: held.notes})[1][0]
        new = [span for span in found if span.begin >= self._until]
        steps = breakdowns(self._rank, calls, held.notes, new)
        if steps:
            self._until = steps[-1].end
        return summary_of(steps, calls) if steps else None

    def _cpu(self) -> float | None:
        before, now = self._ticks, _ticks()
        self._ticks = now
        whole = now[1] - before[1]
        return (now[0] - before[0]) / whole if whole > 0 else None


def _ticks() -> tuple[int, int]:
    """Return the ticks in which the machine's processors were busy, and all ticks."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    except OSError:
        return 0, 0
    ticks = [int(each) for each in fields]
    return sum(ticks) - sum(ticks[_IDLE]), sum(ticks)


def _memory() -> float | None:
    """Return the used part of the machine's memory."""
    try:
        told = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    sizes = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", told, re.MULTILINE))
    if len(sizes) < 2 or not int(sizes["MemTotal"]):
        return None
    return 1 - int(sizes["MemAvailable"]) / int(sizes["MemTotal"])
