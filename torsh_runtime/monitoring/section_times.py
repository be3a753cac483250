"""Adds up how long steps and sections took."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

_STEP = "(step)"  # a section may be called "step"


class Spent(NamedTuple):
    """Sums up all blocks of one name, in all threads."""

    calls: int
    seconds: float
    longest: float
    """Seconds."""


class SectionTimes:
    """Adds up what sections take from now on. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: dict[int, list[tuple[str, float]]] = {}
        self._spent: dict[str, Spent] = {}
        self._begun, self._stepped = time.perf_counter(), 0.0

    def begin(self, name: str, thread: int) -> None:
        """Note that a section begins in that thread."""
        with self._lock:
            self._inside.setdefault(thread, []).append((name, time.perf_counter()))

    def end(self, name: str, thread: int) -> None:
        """Note that a section ends, with sections inside it that an exception left open."""
        now = time.perf_counter()
        with self._lock:
            inside = self._inside.get(thread, [])
            if not any(name == each for each, _ in inside):
                return
            while inside:
                each, begun = inside.pop()
                if each == name:
                    self._add(name, now - begun)
                    return

    def step(self, number: int) -> None:
        """Note that a step begins."""
        del number
        now = time.perf_counter()
        with self._lock:
            if self._stepped:
                self._add(_STEP, now - self._stepped)
            self._stepped = now

    def spent(self) -> Mapping[str, Spent]:
        """Return the times so far, by name; steps are under _STEP."""
        with self._lock:
            return dict(self._spent)

    def summary(self) -> str:
        """Return a table of the times, the longest first."""
        seconds = time.perf_counter() - self._begun
        rows = [("section", "calls", "seconds", "mean ms", "longest ms", "share")]
        found = sorted(self.spent().items(), key=lambda each: -each[1].seconds)
        for name, spent in found:
            mean, longest = spent.seconds / spent.calls * 1e3, spent.longest * 1e3
            share = f"{spent.seconds / seconds:.1%}"
            times = (f"{spent.seconds:.3f}", f"{mean:.3f}", f"{longest:.3f}")
            shown = name if name.isprintable() else ascii(name)[1:-1]
            rows.append((shown, str(spent.calls), *times, share))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                each.ljust(width) if place == 0 else each.rjust(width)
                for place, (each, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def _add(self, name: str, seconds: float) -> None:
        calls, spent, longest = self._spent.get(name, (0, 0.0, 0.0))
        self._spent[name] = Spent(calls + 1, spent + seconds, max(longest, seconds))
