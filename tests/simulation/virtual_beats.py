"""Heartbeats over the virtual network."""

from __future__ import annotations

import asyncio
from contextvars import Context

from simulation.network import Network
from simulation.oracles import Oracles

from torshrun.health.clocks import Exchange
from torshrun.rendezvous.heartbeats import Answer, Heartbeat, Heartbeats, Judge, Reply


class VirtualBeats(Heartbeats):
    """One agent's end."""

    def __init__(
        self,
        network: Network,
        oracles: Oracles,
        ends: dict[str, VirtualBeats],
        end: str,
        context: Context,
    ) -> None:
        """`context` is the agent's: beats are judged in it, and so not while it stands still."""
        self._network = network
        self._oracles = oracles
        self._ends = ends
        self._end = end
        self._context = context
        self._judge: Judge | None = None
        ends[end] = self

    def serve(self, judge: Judge | None) -> None:
        self._judge = judge

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        network = self._network
        answer: asyncio.Future[Reply] = network.loop.create_future()
        sent = network.loop.time()

        def reply(what: Answer, arrived: float) -> None:
            late = network.lateness()
            network.send(node, self._end, lambda: settle(what, arrived), late)

        def settle(what: Answer, arrived: float) -> None:
            if answer.done():
                return
            if what != "silent":
                self._oracles.on_answer(self._end, node, sent, arrived, what == "granted")
                exchange = Exchange(sent, arrived, arrived, network.loop.time())
                answer.set_result(Reply(what, exchange))
            else:
                answer.set_result(Reply("silent"))

        def arrive() -> None:
            other = self._ends.get(node)
            if other is None:
                reply("silent", 0.0)
            else:
                network.loop.call_soon(judge, other, context=other._context)

        def judge(other: VirtualBeats) -> None:
            arrived = network.loop.time()
            self._oracles.on_beat(self._end, node, arrived)
            granted = other._judge is not None and other._judge(beat)
            if granted:
                self._oracles.on_grant(node, arrived)
            reply("granted" if granted else "refused", arrived)

        network.send(self._end, node, arrive, network.lateness())
        silence = network.loop.call_later(timeout, _give_up, answer)
        try:
            return await answer
        finally:
            silence.cancel()

    async def close(self) -> None:
        self._ends.pop(self._end, None)


def _give_up(answer: asyncio.Future[Reply]) -> None:
    if not answer.done():
        answer.set_result(Reply("silent"))
