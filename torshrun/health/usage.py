"""Measures how much of this node's resources is used."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torshrun.cgroups import find, memory_limit
from torshrun.procfs import ROOT, read_number, read_text
from torshrun.topology.memory import available_memory

_MEGABITS = 1e6 / 8
_IDLE, _WAITS_FOR_DISK, _GUEST = 3, 4, 8


class Usage(NamedTuple):
    """Holds the part of each that is used, 0 to 1; None is unknown."""

    cpu: float | None
    """The used part of all processors that are in use on this machine."""
    memory: float | None
    """The used part of the machine's memory, or of a control group's if less is left there."""
    network: float | None
    """The used part of the busiest interface, in its busier direction; None without its speed."""


class _Counted(NamedTuple):
    at: float
    busy: int
    whole: int
    received: Mapping[str, int]
    sent: Mapping[str, int]


class UsageMeter:
    """Measures how much was used since the previous call."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._before = self._counted()

    def read(self) -> Usage:
        now, before = self._counted(), self._before
        self._before = now
        whole = now.whole - before.whole
        return Usage(
            cpu=(now.busy - before.busy) / whole if whole > 0 else None,
            memory=self._memory(),
            network=self._network(before, now),
        )

    def _counted(self) -> _Counted:
        first = read_text(self._root / "proc/stat").partition("\n")[0].split()[1:]
        ticks = [int(each) for each in first[:_GUEST] if each.isdecimal()]
        idle = sum(ticks[_IDLE : _WAITS_FOR_DISK + 1])
        received, sent = {}, {}
        for line in read_text(self._root / "proc/net/dev").splitlines():
            name, colon, rest = line.partition(":")
            counts = rest.split()
            if colon and len(counts) > 8 and counts[0].isdecimal() and counts[8].isdecimal():
                received[name.strip()], sent[name.strip()] = int(counts[0]), int(counts[8])
        return _Counted(time.monotonic(), sum(ticks) - idle, sum(ticks), received, sent)

    def _network(self, before: _Counted, now: _Counted) -> float | None:
        seconds, rates = now.at - before.at, []
        for name in now.sent:
            speed = read_number(self._root / "sys/class/net" / name / "speed")
            if speed and seconds > 0 and name in before.sent:
                most = max(
                    now.received[name] - before.received[name], now.sent[name] - before.sent[name]
                )
                rates.append(most / seconds / (speed * _MEGABITS))
        return max(rates, default=None)

    def _memory(self) -> float | None:
        told = re.search(
            r"^MemTotal: +(\d+) kB$", read_text(self._root / "proc/meminfo"), re.MULTILINE
        )
        limits = [int(told[1]) << 10] if told else []
        for path in find("memory", self._root):
            limits += [limit for cgroup in path if (limit := memory_limit(cgroup))]
        least = min(limits, default=0)
        return 1 - min(available_memory(self._root) / least, 1.0) if least else None
