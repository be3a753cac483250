"""Carries out torshctl's requests to a run, and follows how far each has got."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from torsh_runtime.errors import StoreError
from torshrun import exit_codes
from torshrun.config.values import Nodes
from torshrun.ctl.picture import NotDone, Picture, find_nodes, nodes
from torshrun.ctl.run import Progress, Run
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import NodeRow, SizeWanted, StopWanted

STOPPED = exit_codes.SIGNALLED + 2
"""The exit code of all agents of a stopped job, the same as after Ctrl-C on each."""
_STOP_KEPT = 30.0
"""The least number of seconds for which nodes can find the request.

It expires so that it does not stop the next run with the same id.
"""


class SteeredRun(Run):
    """Changes the size of a run, drains its nodes, and stops it."""

    async def watch(self, show: Callable[[Picture], None]) -> None:
        """Show each change until the run has ended, or no node and no leader is left to end it."""
        while not self.picture.verdict and (self.picture.present or self.picture.leader):
            show(await self.change())

    async def scale(self, asked: str, size: Nodes) -> str:
        """Change the number of nodes. A single number keeps MIN unless MIN is larger."""
        self._check_runs()
        if any(row.fixed_rank >= 0 for row in self.picture.present):
            raise NotDone(
                f"run {self.picture.run_id} has a fixed number of nodes: each has its --node-rank "
                f"(--rdzv-backend static)"
            )
        is_range = ":" in asked
        least = size.fewest
        if not is_range and self.picture.limits:
            least = min(least, self.picture.limits[0])
        wanted = SizeWanted(min_nodes=least, max_nodes=size.most)
        await self.ask({rows.WANT_SIZE: rows.encode(wanted)})
        return await self.wait(partial(scaled, wanted, size.fewest))

    async def drain(self, names: Sequence[str], *, force: bool) -> str:
        self._check_runs()
        before = self.picture
        asked = find_nodes(before, names)
        if before.header is None:  # nodes read in the header of a round that they are to leave
            raise NotDone(
                f"run {before.run_id} has no round yet, in which a node can be asked to leave: end "
                "torshrun there (SIGTERM), or the whole job (torshctl stop)"
            )
        if not force:
            check_drain(asked, before)
        keys = {rows.WANT_DRAIN + row.node: rows.SET for row in asked}
        await self.ask(keys, rows.DRAIN_KEPT)
        told = await self.wait(partial(drained, asked, before))
        if self.timeout is not None:
            with suppress(StoreError):  # the store may have ended with these nodes
                await self.withdraw([*keys])
        return told

    async def keep(self, names: Sequence[str]) -> str:
        self._check_runs()
        asked = {row.node for row in find_nodes(self.picture, names)}
        await self.withdraw([rows.WANT_DRAIN + node for node in asked])
        late = asked.difference(row.node for row in (await self.now()).staying)
        if late:
            names = ", ".join(sorted(late))
            raise NotDone(f"too late: {names} is leaving already; start torshrun there again")
        return f"{', '.join(sorted(asked))} stays"

    async def stop(self, reason: str) -> str:
        if self.picture.verdict:
            return ended(self.picture)
        self._check_runs()
        said = f"torshctl stop on {os.uname().nodename}" + (f": {reason}" if reason else "")
        wanted = StopWanted(code=STOPPED, reason=said)
        await self.ask({rows.WANT_STOP: rows.encode(wanted)}, max(self.timeout or 0.0, _STOP_KEPT))
        try:
            told = await self.wait(stopped)
            if self.timeout is not None:
                await self.withdraw([rows.WANT_STOP])
        except StoreError as error:  # a store that an agent serves ends with the agent
            if self.picture.verdict:
                return ended(self.picture)
            if isinstance(error.__cause__, ConnectionRefusedError):
                return f"run {self.picture.run_id} has ended, and its store with it"
            raise
        return told

    async def forget(self) -> str:
        """Delete what the store still holds of a run that has no nodes left."""

        def check(picture: Picture) -> None:
            if picture.present:
                there = nodes(len(picture.present))
                raise NotDone(f"run {picture.run_id} has {there}; end it first (torshctl stop)")

        if not await self.erase(check):
            raise NotDone(f"run {self.picture.run_id} has started again: it was not deleted")
        return f"run {self.picture.run_id} is forgotten"

    def _check_runs(self) -> None:
        if self.picture.verdict:
            raise NotDone(ended(self.picture))
        if self.picture.is_abandoned:
            raise NotDone(
                f"no node of run {self.picture.run_id} is left (torshctl forget deletes it)"
            )


def scaled(wanted: SizeWanted, least: int, now: Picture) -> Progress:
    """Return whether the run has `least` nodes or more and no spare that it would take.

    Raises NotDone if the job has ended.
    """
    if now.verdict:
        raise NotDone(f"the job has ended meanwhile: {now.verdict.outcome}, {now.verdict.reason}")
    header = now.header
    size = header.size if header else 0
    missing = max(least, wanted.min_nodes) - len(now.staying)
    if missing > 0:
        return Progress(
            False, f"waiting for {nodes(missing, 'more ')}: start torshrun there ({now.summary})"
        )
    if now.phase != "running" or size > wanted.max_nodes:
        return Progress(False, f"waiting for the next round ({now.summary})")
    if size < least or (now.spares and size < wanted.max_nodes):
        return Progress(False, f"{_why_not_larger(now)} ({now.summary})")
    return Progress(True, now.summary)


def check_drain(asked: Sequence[NodeRow], now: Picture) -> None:
    """Raise NotDone if too few nodes would be left, so that the job would end."""
    rest = [row for row in now.staying if row not in asked]
    least = now.limits[0] if now.limits else 0
    if len(rest) < least:
        raise NotDone(
            f"run {now.run_id} needs {nodes(least)} and would have {len(rest)}, which would end "
            "it. Start another node first or lower MIN (torshctl scale); --force drains anyway"
        )


def drained(asked: Sequence[NodeRow], before: Picture, now: Picture) -> Progress:
    """Return whether these nodes have left and the others run on without them."""
    ids = {row.node for row in asked}
    names = ", ".join(sorted(ids))
    here = sorted(ids.intersection(row.node for row in now.present))
    if here:
        return Progress(False, f"waiting for {', '.join(here)} to stop its workers and leave")
    if now.verdict:
        return Progress(True, f"{names} left, and the job has ended: {now.verdict.reason}")
    if not now.present:
        return Progress(True, f"{names} left, and no node of the run is left")
    if not any(map(before.takes_part, asked)):
        return Progress(True, f"{names} left: {now.summary}")
    if now.phase != "running" or now.round_token == before.round_token:
        return Progress(False, f"{names} left; waiting for the next round ({now.summary})")
    return Progress(True, f"{names} left: {now.summary}")


def stopped(now: Picture) -> Progress:
    """Return whether the job has ended and its agents are gone."""
    if now.verdict is None:
        who = "the nodes" if now.nodes else "a node: none is present, or none reaches the store"
        return Progress(False, f"waiting for {who} to end the job")
    if now.present:
        return Progress(False, f"{ended(now)}; waiting for {nodes(len(now.present))} to leave")
    return Progress(True, ended(now))


def ended(now: Picture) -> str:
    return f"run {now.run_id} has {now.summary}"


def _why_not_larger(now: Picture) -> str:
    if now.holds:
        holding = ", ".join(now.holds)
        return f"waiting for the next checkpoint: until then {holding} lets no node be added"
    return f"waiting for the last call, after which {nodes(len(now.spares))} will join"
