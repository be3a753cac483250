"""The leader's work: watch the nodes, decide, write by transactions that its election fences."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Delete, Put, Write
from torsh_runtime.transitions import Machine
from torshrun.rendezvous import rows
from torshrun.rendezvous.actions import (
    Action,
    Adopt,
    Close,
    Conclude,
    Form,
    ListNodes,
    Mend,
    Mended,
)
from torshrun.rendezvous.asking import BATCH, Asking
from torshrun.rendezvous.cluster_state import ClusterState
from torshrun.rendezvous.restart import following, pause
from torshrun.rendezvous.rows import Header, NodeRow, PlaceRow, SizeWanted, StopWanted, WaitRow
from torshrun.rendezvous.state import decide
from torshrun.rendezvous.watch_cache import WatchCache

A_WHILE = 1.0
"""Seconds after which people are informed of what is waited for."""
SHORTEST_WAIT = 0.001
"""Seconds between two decisions when nothing is heard: timers may fire a little early."""
REST = 4.0
"""Times as long as a decision takes passes until the next, which is on all that came meanwhile."""
PLACES_KEPT = 120.0
"""Seconds, and a ttl, for which place rows are kept: nodes read them at once."""


Fences = tuple[Compare, Compare]


@dataclass(eq=False)
class Lead:
    """Leads the job for one term. `run` ends when the job has ended, or by being cancelled."""

    asking: Asking
    view: ClusterState
    on_first_listing: Callable[[], None]

    def __post_init__(self) -> None:
        self._header_revision = self._header_as_of = 0
        self.news = asyncio.Event()
        """Set when there is something new to decide on."""
        self._nodes = WatchCache(self.asking, rows.NODES, self._take_node)
        self._wants = WatchCache(self.asking, rows.WANTS, self._take_want)
        self._rest = 0.0  # seconds to wait for more news once there is some
        self._wait = ""  # what is waited for, without figures
        self._tell_at = math.inf  # when people are told of it
        self._over = False
        self._seen = Machine("leader", "no round")

    async def run(self) -> None:
        """Lead. The store may come and go meanwhile."""
        async with asyncio.TaskGroup() as tasks:
            mirrors = self._nodes, self._wants
            watches = [tasks.create_task(mirror.follow()) for mirror in mirrors]
            for mirror in mirrors:
                await mirror.is_loaded.wait()
            self.on_first_listing()
            while not self._over:
                await self._decide()
            for watch in watches:
                watch.cancel()

    def take_header(self, header: Header | None, revision: int, as_of: int) -> None:
        """Handle the round as the store had it at the revision `as_of`."""
        if as_of < self._header_as_of:  # the watch lags behind what was written here
            return
        self._header_revision, self._header_as_of = revision, as_of
        self.view.take_header(header, self.asking.clock())
        if self._over:
            self._seen.become("over")
        elif header:
            self._seen.become(f"round {header.phase}", header.reason, round=header.number)
        else:
            self._seen.become("no round")
        self.news.set()

    # ---- deciding

    async def _decide(self) -> None:
        """Make a decision and carry it out, or wait for news."""
        now = self.asking.clock()
        self.view.sight, decision = decide(self.view, now)
        self._rest = REST * (self.asking.clock() - now)
        try:
            if decision.action:
                await self._carry_out(decision.action)
            else:
                tell_at = await self._tell_wait(decision.why, now)
                most = min(decision.wake, tell_at, now + self.asking.settings.ttl)
                await self._wait_for_news(max(most - now, SHORTEST_WAIT))
        except StoreError:
            await self.asking.pause()

    async def _tell_wait(self, why: str, now: float) -> float:
        """Tell people once what is waited for, if it takes a while; when to look at that again."""
        what = re.sub(r"\d+", "#", why)
        if what != self._wait:
            self._wait, self._tell_at = what, now + A_WHILE if why else math.inf
        if now >= self._tell_at:
            self._tell_at = math.inf
            asking, (leads, _) = self.asking, self._fences()
            put = Put(asking.key(rows.WAIT), rows.encode(WaitRow(why=why)))
            await asking.ask(asking.store.transact((leads,), (put,)))
        return self._tell_at

    async def _list(self) -> bool:
        """List all nodes: nobody enters a round that is closing, so this shows who has."""
        revision = await self._nodes.refresh()
        if revision >= self._header_revision:
            self.view.sight = replace(self.view.sight, listed_since_close=True)
        else:  # of a member that lags behind
            await self.asking.pause()
        return True

    async def _wait_for_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(self._rest)
        self.news.clear()

    async def _carry_out(self, action: Action) -> None:
        fences = self._fences()  # now: what is heard meanwhile was not decided by
        if isinstance(action, Close):
            done = await self._write_header(fences, self._closing(action))
        elif isinstance(action, Form):
            done = await self._form(fences, action)
        elif isinstance(action, Adopt):
            done = await self._write_header(fences, self._adopted())
        elif isinstance(action, Mend):
            reason, at_commit = action.reason, action.at_commit
            header = replace(self._adopted(), mending=True, reason=reason, at_commit=at_commit)
            done = await self._write_header(fences, header)
        elif isinstance(action, Mended):
            done = await self._write_header(fences, self._mended(action))
        elif isinstance(action, ListNodes):
            done = await self._list()
        else:
            done = await self._conclude(fences, action)
        if not done:  # no leader any more, or the header has changed: a watch will tell
            await self._wait_for_news(self.asking.settings.interval / 16)

    # ---- headers

    def _own(self, header: Header) -> Header:
        view = self.view
        return replace(
            header,
            fence=view.fence,
            leader=view.node,
            drained=tuple(sorted(view.wishes.drained & view.rows.keys())),
            missed=tuple(sorted(filter(view.is_absent, view.rows))),
        )

    def _adopted(self) -> Header:
        view = self.view
        assert view.header is not None
        own = self._own(view.header)
        if view.header.fence == view.fence:
            return own
        if view.roster.unaccounted or view.roster.apart:  # it stays the other leader's
            return replace(view.header, drained=own.drained, missed=own.missed)
        return replace(own, leader_inside=view.accounts_for(view.node))

    def _closing(self, close: Close) -> Header:
        delay = self._pause_after_failure() if close.failed else 0.0
        return replace(
            self._adopted(), phase="closing", reason=close.reason, failed=close.failed, delay=delay
        )

    def _mended(self, mended: Mended) -> Header:
        header, history = self._adopted(), mended.history
        return replace(
            header,
            number=header.number + 1,
            mending=False,
            at_commit=False,
            reason="",
            finding="",
            restarts=history.restarts,
            streak=history.streak,
            startup=history.startup,
        )

    def _pause_after_failure(self) -> float:
        view, settings = self.view, self.asking.settings
        ran = self.asking.clock() - view.sight.opened_at
        history = following(view.history, "", ran)  # if nobody has reported the failure yet
        for node in view.roster.failures[:1]:
            cause = view.roster.reports[node]
            history = following(view.history, cause.startup, cause.seconds)
        return pause(settings.restart_backoff, history, self.asking.chance.random())

    def _fences(self) -> Fences:
        """Return the conditions that this node still leads, and that the header is unchanged."""
        key = self.asking.key
        return (
            Compare(key(rows.LEADER), self.view.fence),
            Compare(key(rows.ROUND), self._header_revision),
        )

    async def _write_header(self, fences: Fences, header: Header, *beside: Write) -> bool:
        asking = self.asking
        put = Put(asking.key(rows.ROUND), rows.encode(header))
        told = Delete(asking.key(rows.WAIT))
        outcome = await asking.ask(asking.store.transact(fences, (put, told, *beside)))
        if outcome.succeeded:
            self.take_header(header, outcome.revision, outcome.revision)
        return outcome.succeeded

    # ---- forming

    async def _form(self, fences: Fences, form: Form) -> bool:
        token = f"{self.asking.chance.getrandbits(64):016x}"
        nodes = form.seating.nodes
        self.view.sight = self.view.sight.with_places(token, [row.node for row in nodes])
        asking, store = self.asking, self.asking.store
        lease = await asking.ask(store.grant(PLACES_KEPT + asking.settings.ttl))
        places: list[Write] = [
            Put(asking.key(rows.PLACES + node), rows.encode(place), lease)
            for node, place in _places(form, token)
        ]
        *batches, last = [places[i : i + BATCH] for i in range(0, len(places), BATCH)]
        for batch in batches:
            outcome = await asking.ask(store.transact(fences, batch))
            if not outcome.succeeded:
                return False
        return await self._write_header(fences, self._header(form, token), *last)

    def _header(self, form: Form, token: str) -> Header:
        view, first = self.view, form.seating.nodes[0]
        least, most = view.limits
        header = Header(
            number=form.number,
            phase="open",
            token=token,
            fence=view.fence,
            leader_inside=view.node in view.sight.forming[token],
            size=len(form.seating.nodes),
            world_size=sum(row.nproc for row in form.seating.nodes),
            master_addr=first.address,
            master_port=first.master_port,
            jax_port=first.jax_port,
            store_node=first.node,
            store_endpoint=first.endpoint,
            min_nodes=least,
            max_nodes=most,
            max_restarts=(view.header or view.settings).max_restarts,
            restarts=form.history.restarts,
            streak=form.history.streak,
            startup=form.history.startup,
            finding=form.finding,
            kept=bool(form.staying),
            since=view.header.since if form.staying and view.header else form.number,
            departed=self._departed(form.seating.nodes),
        )
        return self._own(header)

    def _departed(self, nodes: Sequence[NodeRow]) -> int:
        """Return how many nodes were in a round before, and are not among these."""
        view, before = self.view, self.view.header
        if before is None:
            return 0
        remaining = [row for row in nodes if view.accounts_for(row.node)]
        back = [row for row in nodes if row.round >= 0 and not view.accounts_for(row.node)]
        return max(0, before.departed + before.size - len(remaining) - len(back))

    # ---- the end

    async def _conclude(self, fences: Fences, conclude: Conclude) -> bool:
        """Write the verdict; the run id is free when its lease has ended, and the epoch with it.
        Not by what a leader that was cut off from the store heard before.
        """
        asking = self.asking
        await self._nodes.refresh()
        self.view.sight, decision = decide(self.view, asking.clock())
        if decision.action != conclude:
            return True
        lease = await asking.ask(asking.store.grant(asking.settings.verdict_ttl))
        writes: list[Write] = [Put(asking.key(rows.VERDICT), rows.encode(conclude.verdict), lease)]
        writes += [Delete(asking.key(wish)) for wish in (rows.WANT_SIZE, rows.WANT_STOP)]
        control = await asking.ask(asking.store.list(asking.key(rows.CONTROL)))
        stays = asking.key(rows.LEADER), asking.key(rows.VERDICT)
        writes += [
            Put(i.key, i.value, lease)
            for i in control.items
            if i.value and i.key not in stays and not i.key.startswith(asking.key(rows.QUESTIONS))
        ]
        outcome = await asking.ask(asking.store.transact(fences, writes))
        self._over = outcome.succeeded
        if self._over:
            verdict = conclude.verdict
            self._seen.become("over", f"{verdict.outcome}: {verdict.reason}")
        return outcome.succeeded

    # ---- watching

    def _take_node(self, name: str, value: bytes | None, revision: int) -> None:
        """Handle a node's row; treat one as absent if it is not of the node that its key names."""
        row = rows.decode(NodeRow, value)
        if row is not None and row.node == name:
            self.view.put(row, revision)
        else:
            self.view.drop(name)
        self.news.set()

    def _take_want(self, name: str, value: bytes | None, revision: int) -> None:
        """Handle a request or its end. One that is not signed, or is malformed, counts as none."""
        view, key = self.view, rows.WANTS + name
        if key == rows.WANT_SIZE:
            view.wishes.size = rows.decode(SizeWanted, value)
        elif key == rows.WANT_STOP:
            view.wishes.stop = rows.decode(StopWanted, value)
        elif key.startswith(rows.WANT_DRAIN):
            view.drain(key.removeprefix(rows.WANT_DRAIN), bool(value))
        self.news.set()


def _places(form: Form, token: str) -> Iterator[tuple[str, PlaceRow]]:
    nodes, before, role_sizes = form.seating.nodes, Counter[str](), Counter[str]()
    for row in nodes:
        role_sizes[row.role] += row.nproc
    for rank, row in enumerate(nodes):
        place = PlaceRow(
            round=form.number,
            token=token,
            node_rank=rank,
            first_rank=before.total(),
            role_first_rank=before[row.role],
            role_world_size=role_sizes[row.role],
            stays=row.node in form.staying,
        )
        yield row.node, place
        before[row.role] += row.nproc
    for node, why in form.seating.waiting:
        yield node, PlaceRow(round=form.number, token=token, why=why)
