"""What there is in a virtual job: agents, a store, and a network between them."""

from __future__ import annotations

import asyncio
import random
from typing import cast

from simulation.codec import Codec
from simulation.idleness import Idleness
from simulation.network import Network
from simulation.oracles import Oracles
from simulation.server import Server
from simulation.virtual_agent import VirtualAgent
from simulation.virtual_beats import VirtualBeats
from simulation.virtual_loop import VirtualLoop

from torshrun.rendezvous.settings import Settings

LOOK = 0.5
"""Seconds between looks at what agents do, besides those at every event."""


class World:
    """All of it. To be made inside the virtual loop."""

    def __init__(self, settings: Settings, chance: random.Random) -> None:
        self.settings = settings
        self.chance = chance
        self.loop = cast(VirtualLoop, asyncio.get_running_loop())
        self.history: list[str] = []
        self.codec = Codec(settings.run_id)
        self.oracles = Oracles(self.loop, self.codec, settings)
        self.network = Network(self.loop, random.Random(chance.random()))
        self.server = Server(self.network, self.codec, self.oracles)
        self.agents: dict[str, VirtualAgent] = {}
        self.paused: set[str] = set()
        self.is_finishing = False
        """Whether all workers are to succeed, also those of agents that come yet."""
        self.is_healed = False
        """Whether no more faults are to begin."""
        self._ends: dict[str, VirtualBeats] = {}
        self._idleness = Idleness(settings)
        self._looking = self.loop.create_task(self._look())

    def tell(self, who: str, what: str) -> None:
        self.history.append(f"{self.loop.time():8.3f}  {who} {what}")

    def add(self, host: str = "") -> VirtualAgent:
        """`host` is the name of its machine, that of the agent unless given."""
        name = f"n{len(self.agents)}"
        agent = self.agents[name] = VirtualAgent(
            name,
            self.settings,
            self.server,
            self._ends,
            random.Random(self.chance.random()),
            self.tell,
            host,
        )
        agent.finishing = self.is_finishing
        return agent

    def present(self) -> list[VirtualAgent]:
        return [agent for agent in self.agents.values() if agent.alive and not agent.left]

    def running(self) -> list[VirtualAgent]:
        return [agent for agent in self.present() if agent.place is not None]

    def leader(self) -> VirtualAgent | None:
        """Who leads, as the store has it."""
        term = self.oracles.record.leader
        agent = self.agents.get(term.node) if term else None
        return agent if agent and agent.alive and not agent.left else None

    # ---- what befalls the agents

    def pause(self, agent: VirtualAgent, seconds: float) -> None:
        """It stands still."""
        if not self.is_healed and agent.name not in self.paused:
            self.paused.add(agent.name)
            agent.pause()
            outside = self.network.outside
            self.loop.call_later(seconds, self.resume, agent, context=outside)

    def resume(self, agent: VirtualAgent) -> None:
        if agent.name in self.paused:
            self.paused.discard(agent.name)
            agent.resume()

    def crash(self, agent: VirtualAgent, host: bool = False) -> None:
        agent.crash(host)
        self.paused.discard(agent.name)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            network = self.network
            clear = self.server.up and not (network.cuts or network.lags or network.loss)
            clear = clear and not (network.late or self.paused)
            self._idleness.look(self.present(), clear, self.loop.time())
            self._idleness.look_at_round(self.oracles.record, clear, self.loop.time())

    def heal(self) -> None:
        self.tell("--", "the faults stop")
        self.is_healed = True
        self.network.heal()
        if not self.server.up:
            self.server.start()
        for name in sorted(self.paused):
            self.resume(self.agents[name])

    def close(self) -> None:
        """Stop everything; what crashed is let go, so that its tasks can be cancelled."""
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        for name in self.agents:
            self.loop.move(name)
