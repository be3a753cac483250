"""Nobody waits for ever, and nobody idles in silence: a round whose nodes do not all enter it ends
in time; who has no workers has been told why, and not long ago for another one.

What an agent was told when its last round closed is a reason while that round can still be ending:
for a node that is to be reckoned with until the end of an outage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from simulation.record import Record, check

from torshrun.rendezvous.settings import Settings

if TYPE_CHECKING:
    from simulation.virtual_agent import VirtualAgent

BEGIN = 10.0
"""Seconds that a node may need to find the store and hear of the round."""


class Idleness:
    """Judges what agents without workers were told."""

    def __init__(self, settings: Settings) -> None:
        self._ending = settings.outage_timeout + 3 * settings.ttl
        self._since: dict[str, float] = {}
        self._open_since: dict[str, float] = {}

    def look(self, agents: Iterable[VirtualAgent], reachable: bool, now: float) -> None:
        """`reachable`: whether the store is there for all; else they need not know what happens."""
        for agent in agents:
            if not reachable or agent.place is not None or agent.left:
                self._since[agent.name] = now
                continue
            idle = now - self._since.setdefault(agent.name, now)
            check(idle < BEGIN or bool(agent.told), f"{agent.name} idles, and was told nothing")
            ended = idle > self._ending and agent.told == "closing"
            check(not ended, f"{agent.name} has idled for {idle:.0f} s since its round was closing")

    def look_at_round(self, record: Record, reachable: bool, now: float) -> None:
        """All nodes of a round enter it, or it ends."""
        header = record.header
        if not reachable or header is None or header.phase == "closing":
            self._open_since.clear()
            return
        there = {node for node, row in record.nodes.items() if row.token == header.token}
        if len(there | record.starters[header.token]) < header.size:
            waited = now - self._open_since.setdefault(header.token, now)
            late = waited > self._ending
            check(not late, f"round {header.number} has waited for its nodes for {waited:.0f} s")
        else:
            self._open_since.clear()
