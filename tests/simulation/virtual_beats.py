"""Heartbeats over the virtual network."""

from __future__ import annotations

import asyncio

from simulation.network import Network

from torshrun.rendezvous.beats import Answer, Beat, Beats, Judge


class VirtualBeats(Beats):
    """One agent's end; its endpoint is its node id."""

    def __init__(self, network: Network, ends: dict[str, VirtualBeats], end: str) -> None:
        self._network = network
        self._ends = ends
        self._end = end
        self._judge: Judge | None = None
        ends[end] = self

    def serve(self, judge: Judge | None) -> None:
        self._judge = judge

    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Beat, timeout: float
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout):
                await self._network.carry(self._end, node)
                other = self._ends.get(node)
                if other is None:
                    return "gone"
                granted = other._judge is not None and other._judge(beat)
                await self._network.carry(node, self._end)
                return "granted" if granted else "refused"
        except TimeoutError:
            return "silent"

    async def close(self) -> None:
        self._ends.pop(self._end, None)
