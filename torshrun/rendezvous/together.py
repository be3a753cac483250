"""The rendezvous of a job of several nodes, from finding the store to letting go of it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torsh_runtime.errors import ConfigError, StoreError
from torsh_runtime.store.base import Store
from torsh_runtime.store.remote import RemoteStore
from torshrun import exit_codes
from torshrun.config.job import RendezvousConfig
from torshrun.health.clocks import CommonClock
from torshrun.rendezvous import rows
from torshrun.rendezvous.address import detach, is_loopback, routable
from torshrun.rendezvous.agent_server import AgentServer
from torshrun.rendezvous.base import (
    Answer,
    Asked,
    JobOver,
    Lasting,
    NodeAssignment,
    Post,
    Rendezvous,
    RendezvousEvent,
    Report,
    Standing,
)
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.growth import Growth
from torshrun.rendezvous.ports import HeldPorts
from torshrun.rendezvous.rejoin import EpochRendezvous
from torshrun.rendezvous.rendezvous_store import RendezvousStore, patiently
from torshrun.rendezvous.served import ServedStore
from torshrun.rendezvous.settings import NodeFacts, Settings

_IN_CLEAR = "etcd's password goes over the network as it is; give etcd TLS (--rdzv-conf cacert=…)"
_REFUSALS = 4  # how often in a row a host has to say, within a ttl, that nobody serves the store


@dataclass(eq=False)
class Together(Rendezvous):
    """Holds this node's part in the job.

    That is its way to the store, its hub, and its part in each epoch.
    """

    config: RendezvousConfig
    settings: Settings
    nproc: int
    role: str

    def __post_init__(self) -> None:
        self._ports = HeldPorts()
        self._post: Post = lambda event: None
        self._meeting: RendezvousStore | None = None
        self._hub: AgentServer | None = None
        self._store: Store | None = None
        """The one where nodes meet, as one epoch's nodes write and read there."""
        self._node = f"{re.sub(r'[^a-zA-Z0-9.-]', '_', os.uname().nodename)}-{secrets.token_hex(4)}"
        secret = self.config.secret.encode()
        self._part = EpochRendezvous(self._meet, self.settings, secret, self._prepare)
        self._growth = Growth(self._part.hold_growth)
        self._watching: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def start(self, post: Post) -> None:
        self._post = post
        detach()
        self._part.start(self._pass_on)

    def report(self, report: Report) -> None:
        self._growth.unfollow()
        self._part.report(report)

    def mend(self, number: int, standing: Standing, seconds: float, lost: bool) -> None:
        self._part.mend(number, standing, seconds, lost)

    def note_lasting(self, lasting: Lasting) -> None:
        self._part.note_lasting(lasting)

    def leave(self, outcome: Literal["preempted", "stopped"], code: int, reason: str) -> None:
        self._end_for_all(code, reason)
        self._part.leave(outcome, code, reason)

    def note_standbys(self, count: int) -> None:
        self._part.note_standbys(count)

    def tell_leader(self, summary: bytes) -> None:
        self._part.tell_leader(summary)

    def common_clock(self, at: float) -> CommonClock | None:
        return self._part.common_clock(at)

    def replace(self, node: str) -> bool:
        """Ask a node to leave if another can take its place. Return whether it was asked.

        It is not if the store may go with the node, or if no other node can have its rank.
        """
        backend, meeting = self.config.backend, self._meeting
        outlives = meeting is not None and (backend == "etcd" or meeting.is_host)
        is_host = backend != "etcd" and node == self._node
        return outlives and not is_host and backend != "static" and self._part.replace(node)

    async def answer(self, asked: Asked, answer: Answer) -> None:
        await self._part.answer(asked, answer)

    def _pass_on(self, event: RendezvousEvent) -> None:
        """Tell the agent. A node that was drained, and serves the store, takes the others along."""
        if isinstance(event, JobOver) and self._watching:
            self._watching.cancel()  # the verdict stands, also when the store's host has gone
        if isinstance(event, JobOver) and event.verdict.outcome == "preempted":
            self._end_for_all(event.verdict.code, f"node {os.uname().nodename} goes")
        self._post(event)

    def _end_for_all(self, code: int, reason: str) -> None:
        """End the job for all nodes if the store is served here.

        They cannot continue without it.
        """
        if self._meeting and self._meeting.is_host and self._store:
            wanted = rows.StopWanted(code=code, reason=f"{reason}, which serves the job's store")
            asking = self._ask_to_stop(self._store, wanted)
            self._stopping = asyncio.get_running_loop().create_task(asking)

    async def _ask_to_stop(self, store: Store, wanted: rows.StopWanted) -> None:
        with suppress(StoreError):  # it has ended already: nobody is there to be asked
            key = rows.base(self.settings.run_id) + rows.WANT_STOP
            await store.put(key, rows.encode(wanted))

    async def close(self) -> None:
        if self._watching:
            self._watching.cancel()
        self._growth.unfollow()
        await self._part.close()
        if self._meeting:
            if self._store:
                await self._meeting.linger(self._store, self.settings.run_id)
            await self._meeting.close()
        self._ports.release()

    async def serve_store(self, place: NodeAssignment) -> ServedStore:
        """Serve the round's store to this node's workers. Raise StoreError if that fails."""
        assert self._hub is not None  # it is there before any place is
        return await self._hub.serve_round(place, self._follow_growth)

    def _follow_growth(self, place: NodeAssignment) -> None:
        """Follow the workers of node rank 0, which may want the job to grow at times only."""
        self._growth.unfollow()
        if place.node_rank == 0 and self._hub is not None:
            self._growth.follow(self._hub.round_store(place.round))

    async def _meet(self) -> Store:
        """Return the store, once it answers."""
        config, say = self.config, self._part.say
        if config.access.password and not config.access.tls:
            say(_IN_CLEAR)
        meeting = self._meeting = await RendezvousStore.open(config, say, self._on_refused)
        key = rows.base(self.settings.run_id) + rows.EPOCH
        ask = partial(meeting.store.get, key)
        await patiently(meeting.name, ask, config.join_timeout, say)
        for remark in remarks(config, meeting):
            say(remark)
        if isinstance(meeting.store, RemoteStore):  # which ends with another agent
            watching = self._watch_host(meeting)
            self._watching = asyncio.get_running_loop().create_task(watching)
        return meeting.store

    async def _prepare(self, store: Store, epoch: Epoch) -> tuple[NodeFacts, AgentServer]:
        """Prepare how this node is reached in an epoch, in which `store` signs."""
        config = self.config
        address = config.local_addr or await self._own_address()
        self._store = store
        self._hub = await AgentServer(epoch, self._node, self._on_refused).open(address)
        facts = NodeFacts(
            node=self._node,
            host=os.uname().nodename,
            address=address,
            endpoint=self._hub.endpoint,
            nproc=self.nproc,
            role=self.role,
            fixed_rank=-1 if config.node_rank is None else config.node_rank,
            ports=self._ports.take,
        )
        return facts, self._hub

    async def _own_address(self) -> str:
        """Return this host's address as others reach it, once there is a way to the rendezvous.

        Its endpoint may be the name of this pod, which Kubernetes' DNS learns only after a while.
        """
        config = self.config
        private = not config.secret  # then a store at localhost is for this host alone

        async def attempt() -> str:
            try:
                return await asyncio.to_thread(routable, config.endpoints, may_be_private=private)
            except ConfigError as error:
                raise OSError(str(error)) from None

        names = " or ".join(host for host, _ in config.endpoints)
        return await patiently(names, attempt, config.join_timeout, self._part.say)

    async def _watch_host(self, meeting: RendezvousStore) -> None:
        """End when the store's host reports that it is no longer served: it does not come back."""
        ttl, refusals = self.settings.ttl, 0
        while refusals < _REFUSALS:
            await asyncio.sleep(ttl / _REFUSALS)
            try:
                await meeting.store.get(rows.base(self.settings.run_id))
                refusals = 0
            except StoreError as error:
                refused = isinstance(error.__cause__, ConnectionRefusedError)
                refusals = refusals + 1 if refused else 0
        self._part.end(
            exit_codes.LOST,
            f"{meeting.name} is gone: the agent that served it has ended, and how the job ends "
            f"cannot be known. With --rdzv-backend etcd no node is needed that much.",
        )

    def _on_refused(self, why: str) -> None:
        self._part.say(f"turned somebody away: {why}")


def remarks(config: RendezvousConfig, meeting: RendezvousStore) -> Iterator[str]:
    """Yield what people must know of the store, and of who can do what to the job."""
    is_private = not config.secret and all(is_loopback(place.host) for place in config.endpoints)
    if meeting.is_host:
        whom = ", for this host alone (localhost, and no secret)" if is_private else ""
        yield f"this agent serves the job's store{whom}: without it the job cannot go on"
    if config.secret or is_private:
        return
    who = "may write to etcd" if config.backend == "etcd" else "reaches that port"
    yield (
        f"the job has no secret: whoever {who} ({meeting.name}) can run commands as this user on "
        f"all nodes. Give all of them the same TORSH_SECRET or --secret-file (openssl rand -hex 32)"
    )
