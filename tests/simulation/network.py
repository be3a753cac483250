"""The virtual network: delays, cut links, hosts that stand still."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

STORE = "store"
Cut = tuple[frozenset[str], frozenset[str]]
"""What the first ones send does not reach the others."""


@dataclass
class Network:
    """Which of the ends reach each other, and how long messages take."""

    chance: random.Random
    cuts: list[Cut] = field(default_factory=list)
    lags: dict[tuple[str, str], float] = field(default_factory=dict)
    """How many seconds late an end's watch of a prefix is."""
    paused: dict[str, asyncio.Event] = field(default_factory=dict)
    """Ends that stand still, until their event is set."""
    gone: set[str] = field(default_factory=set)
    loss: float = 0.0
    """How often an answer of the store is lost."""
    slowest: float = 0.02
    """Seconds that a message takes at most."""

    def reaches(self, sender: str, receiver: str) -> bool:
        return not any(sender in these and receiver in those for these, those in self.cuts)

    def joins(self, one: str, other: str) -> bool:
        """Whether they reach each other."""
        return self.reaches(one, other) and self.reaches(other, one)

    def delay(self) -> float:
        return self.chance.uniform(0.0002, self.slowest)

    async def carry(self, sender: str, receiver: str) -> None:
        """One message's way; for ever if the link is cut."""
        await self.moves(sender)
        await asyncio.sleep(self.delay())
        if not self.reaches(sender, receiver):
            await asyncio.sleep(3600)
        await self.moves(receiver)

    async def moves(self, end: str) -> None:
        while end in self.paused:
            await self.paused[end].wait()

    def pause(self, end: str) -> None:
        self.paused.setdefault(end, asyncio.Event())

    def resume(self, end: str) -> None:
        if event := self.paused.pop(end, None):
            event.set()

    def heal(self) -> None:
        """All links work, and everybody moves."""
        self.cuts.clear()
        self.lags.clear()
        self.loss, self.slowest = 0.0, 0.02
        for end in [*self.paused]:
            self.resume(end)
