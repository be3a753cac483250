"""The virtual network: delays, cut links, messages that come late, and what is sent just now."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.virtual_loop import VirtualLoop

STORE = "store"
Cut = tuple[frozenset[str], frozenset[str]]
"""What the first ones send does not reach the others."""


class Mishap(NamedTuple):
    """What becomes of one request to the store."""

    late: float = 0.0
    """Seconds by which it comes late, whether or not its sender has given up meanwhile."""
    answer_late: float = 0.0
    """Seconds by which its answer does."""
    is_lost: bool = False
    """Whether the answer is lost."""


Ambush = Callable[[str, str], Mishap | None]
"""Waits for a request, told by its sender and its kind; None if it is another one."""


@dataclass
class Network:
    """Which of the ends reach each other, and how long messages take."""

    loop: VirtualLoop
    chance: random.Random
    cuts: list[Cut] = field(default_factory=list)
    lags: dict[tuple[str, str], float] = field(default_factory=dict)
    """How many seconds late an end's watch of a prefix is."""
    down: set[str] = field(default_factory=set)
    """Hosts that nothing reaches any more."""
    ambushes: list[Ambush] = field(default_factory=list)
    loss: float = 0.0
    """How often an answer of the store is lost."""
    late: float = 0.0
    """How often a message takes seconds."""
    slowest: float = 0.02
    """Seconds that a message takes at most."""
    outside: Context = field(default_factory=copy_context)
    """What messages are carried in: they move while their sender stands still."""

    def reaches(self, sender: str, receiver: str) -> bool:
        if receiver in self.down:
            return False
        for these, those in self.cuts:  # noqa: SIM110 - a generator costs several times as much
            if sender in these and receiver in those:
                return False
        return True

    def joins(self, one: str, other: str) -> bool:
        """Whether they reach each other."""
        return self.reaches(one, other) and self.reaches(other, one)

    def delay(self) -> float:
        return 0.0002 + (self.slowest - 0.0002) * self.chance.random()

    def send(
        self, sender: str, receiver: str, deliver: Callable[[], object], late: float = 0.0
    ) -> None:
        """One message. It arrives whatever becomes of its sender, unless the link is cut then."""
        seconds = self.delay() + late
        self.loop.call_later(seconds, self._arrive, sender, receiver, deliver, context=self.outside)

    def _arrive(self, sender: str, receiver: str, deliver: Callable[[], object]) -> None:
        if (not self.cuts and not self.down) or self.reaches(sender, receiver):
            deliver()

    def befall(self, sender: str, kind: Callable[[], str]) -> Mishap:
        """What becomes of a request that is sent now."""
        if self.ambushes:
            what = kind()
            for ambush in tuple(self.ambushes):
                mishap = ambush(sender, what)
                if mishap is not None:
                    return mishap
        if self.loss and self.chance.random() < self.loss:
            return Mishap(is_lost=True)
        return Mishap(late=self.lateness(), answer_late=self.lateness())

    def lateness(self) -> float:
        """By how many seconds a message that is sent now comes late."""
        is_late = self.late and self.chance.random() < self.late
        return self.chance.uniform(0.5, 7.0) if is_late else 0.0

    def heal(self) -> None:
        """All links work, and messages are fast."""
        self.cuts.clear()
        self.lags.clear()
        self.ambushes.clear()
        self.loss, self.late, self.slowest = 0.0, 0.0, 0.02
