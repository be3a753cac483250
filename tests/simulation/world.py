"""What there is in a virtual job: agents, a store, and a network between them."""

from __future__ import annotations

import asyncio
import random

from simulation.invariants import Invariants
from simulation.network import Network
from simulation.virtual_agent import VirtualAgent
from simulation.virtual_beats import VirtualBeats
from simulation.virtual_store import Server

from torshrun.rendezvous.settings import Settings


class World:
    """All of it. To be made inside the virtual loop."""

    def __init__(self, settings: Settings, chance: random.Random) -> None:
        self.settings = settings
        self.chance = chance
        self.loop = asyncio.get_running_loop()
        self.history: list[str] = []
        self.invariants = Invariants(settings.min_nodes, settings.max_nodes)
        self.network = Network(random.Random(chance.random()))
        self.server = Server(self.network, self.invariants.on_event)
        self.agents: dict[str, VirtualAgent] = {}
        self.is_healed = False
        """Whether no more faults are to begin."""
        self._ends: dict[str, VirtualBeats] = {}

    def tell(self, who: str, what: str) -> None:
        self.history.append(f"{self.loop.time():8.3f}  {who} {what}")

    def add(self, host: str = "") -> VirtualAgent:
        name = f"n{len(self.agents)}"
        agent = self.agents[name] = VirtualAgent(
            name,
            self.settings,
            self.server,
            self._ends,
            self.invariants,
            random.Random(self.chance.random()),
            self.tell,
            host,
        )
        return agent

    def present(self) -> list[VirtualAgent]:
        return [agent for agent in self.agents.values() if agent.alive and not agent.left]

    def running(self) -> list[VirtualAgent]:
        return [agent for agent in self.present() if agent.place is not None]

    def leader(self) -> VirtualAgent | None:
        return next((a for a in self.present() if a.leads), None)

    def heal(self) -> None:
        self.tell("--", "the faults stop")
        self.is_healed = True
        self.network.heal()
        if not self.server.up:
            self.server.start()
        for agent in self.agents.values():
            agent.resume()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.crash()
        self.server.close()
