"""What agents of several nodes have between them, before any rendezvous: stores and beats."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.ports import free_port

from torsh_runtime.contract import RECOVERY
from torsh_runtime.errors import RendezvousTimeout, StoreError
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.remote import RemoteStore
from torshrun.config.job import Address, Backend, RendezvousConfig
from torshrun.rendezvous.agent_server import AgentServer
from torshrun.rendezvous.base import NodeAssignment
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.heartbeats import Heartbeat
from torshrun.rendezvous.rendezvous_store import RendezvousStore
from torshrun.rendezvous.served import ServedStore

EPOCH = Epoch("job", "name", "", b"the job's secret")
OWN = "a secret that is long enough"
BEAT = Heartbeat("a", 3, "token", 1, 0)
GUARD = 30.0


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(GUARD):
            await scenario()

    asyncio.run(guarded())


def config(port: int, backend: Backend = "tcp", **more: object) -> RendezvousConfig:
    settings = {"backend": backend, "endpoints": (Address("127.0.0.1", port),), **more}
    return RendezvousConfig(**settings)  # type: ignore[arg-type]


def silent(text: str) -> None:
    """Nobody needs to be told."""


@asynccontextmanager
async def hubs(*nodes: str) -> AsyncIterator[list[AgentServer]]:
    """Of these nodes of a job."""
    async with AsyncExitStack() as stack:
        opened = []
        for node in nodes:
            opened.append(await AgentServer(EPOCH, node, silent).open("127.0.0.1"))
            stack.push_async_callback(opened[-1].close)
        yield opened


# ---- signs of life


def test_the_leader_answers_beats_as_it_judges() -> None:
    async def scenario() -> None:
        async with hubs("a", "b") as (leader, member):
            heard: list[Heartbeat] = []

            def judge(beat: Heartbeat) -> bool:
                heard.append(beat)
                return beat.round == 3

            leader.serve(judge)
            assert (await member.beat("a", leader.endpoint, 1, BEAT, GUARD)).answer == "granted"
            other = Heartbeat("a", 4, "token", 2, 1)
            assert (await member.beat("a", leader.endpoint, 1, other, GUARD)).answer == "refused"
            assert heard == [BEAT, other]
            leader.serve(None)
            assert (await member.beat("a", leader.endpoint, 2, BEAT, GUARD)).answer == "refused"

    run(scenario)


def test_an_answer_tells_when_the_leader_had_the_beat() -> None:
    async def scenario() -> None:
        async with hubs("a", "b") as (leader, member):
            for judge in (lambda beat: True, None):
                leader.serve(judge)
                before = time.monotonic()
                exchange = (await member.beat("a", leader.endpoint, 1, BEAT, GUARD)).exchange
                assert exchange is not None
                sent, received, answered, came = exchange
                assert before <= sent <= received <= answered <= came <= time.monotonic()
            await leader.close()
            assert (await member.beat("a", leader.endpoint, 1, BEAT, GUARD)).exchange is None

    run(scenario)


@pytest.mark.parametrize(
    "changes",
    [{"node": "a\0b"}, {"node": "x" * 300}, {"token": "a b"}, {"number": 2**63}],
    ids=["NUL", "long", "space", "large"],
)
def test_what_is_no_sign_of_life_reaches_no_judge(changes: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with hubs("a", "b") as (leader, member):
            heard: list[Heartbeat] = []
            leader.serve(lambda beat: not heard.append(beat))
            wrong = replace(BEAT, **changes)
            assert (await member.beat("a", leader.endpoint, 1, wrong, GUARD)).answer == "silent"
            assert (await member.beat("a", leader.endpoint, 1, BEAT, GUARD)).answer == "granted"
            assert heard == [BEAT]

    run(scenario)


def test_a_leader_that_ended_is_silent_like_one_that_is_deaf() -> None:
    async def scenario() -> None:
        async with hubs("a", "b") as (leader, member):
            leader.serve(lambda beat: True)
            assert (await member.beat("a", leader.endpoint, 1, BEAT, GUARD)).answer == "granted"
            await leader.close()
            replies = [await member.beat("a", leader.endpoint, 1, BEAT, GUARD) for _ in range(2)]
            assert replies[-1].answer == "silent"
            with socket.create_server(("127.0.0.1", 0)) as deaf:
                endpoint = f"tcp:127.0.0.1:{deaf.getsockname()[1]}"
                assert (await member.beat("a", endpoint, 1, BEAT, 0.1)).answer == "silent"

    run(scenario)


def test_nobody_gets_in_without_the_secret() -> None:
    async def scenario() -> None:
        async with hubs("a") as (leader,):
            leader.serve(lambda beat: True)
            others = (
                replace(EPOCH, secret=b"another"),
                replace(EPOCH, name="the one before"),
                replace(EPOCH, run_id="another"),
            )
            for epoch in others:
                stranger = await AgentServer(epoch, "b", silent).open("127.0.0.1")
                reply = await stranger.beat("a", leader.endpoint, 1, BEAT, GUARD)
                assert reply.answer == "silent"
                await stranger.close()

    run(scenario)


def test_what_is_said_to_one_node_is_not_taken_by_another() -> None:
    async def scenario() -> None:
        async with hubs("a", "b") as (leader, member):
            leader.serve(lambda beat: True)
            assert (await member.beat("c", leader.endpoint, 1, BEAT, GUARD)).answer == "silent"

    run(scenario)


def test_nonsense_in_the_place_of_a_beat_is_refused() -> None:
    async def scenario() -> None:
        async with hubs("a") as (leader,):
            leader.serve(lambda beat: True)
            store = RemoteStore(leader.endpoint, EPOCH.key("hub", "a"))
            for nonsense in ("", "\0", "[1, 1]", "{" * 5000, '{"node": "a"}'):
                with pytest.raises(StoreError, match="no sign of life"):
                    await store.get("beat " + nonsense)
            await store.close()

    run(scenario)


# ---- stores of rounds


def test_workers_of_all_nodes_share_the_rounds_store_and_no_other() -> None:
    async def scenario() -> None:
        async with hubs("a", "b") as (first, second):
            here = await first.serve_round(at(7, 0, "a", first), ignore)
            there = await second.serve_round(at(7, 1, "a", first), ignore)
            earlier = await first.serve_round(at(6, 0, "a", first), ignore)
            assert here.secret == there.secret != earlier.secret
            await asyncio.to_thread(exchange, here, there, earlier)
            await there.close()
            await here.close()
            again = await first.serve_round(at(7, 0, "a", first), ignore)
            await asyncio.to_thread(finds_nothing, again)
            await again.close()
            await earlier.close()

    run(scenario)


def test_workers_that_go_on_among_other_nodes_keep_their_connection() -> None:
    async def scenario() -> None:
        async with hubs("a", "b") as (first, second):
            one = await second.serve_round(at(7, 1, "a", first), ignore)
            with await asyncio.to_thread(connect, one) as client:
                await asyncio.to_thread(client.put, "key", b"of round 7")
                await asyncio.to_thread(client.put, f"{RECOVERY}own", b"kept")
                await one.move(at(8, 0, "b", second, since=7))
                other = await first.serve_round(at(8, 1, "b", second, since=7), ignore)
                assert other.secret == one.secret
                await asyncio.to_thread(meets_in_another_round, client, other)
            await other.close()
            await one.close()

    run(scenario)


def meets_in_another_round(client: StoreClient, other: ServedStore) -> None:
    assert client.get("key") is None
    own = client.get(f"{RECOVERY}own")
    assert own is not None
    assert own.value == b"kept"
    client.put("key", b"of round 8")
    with connect(other) as there:
        assert there.wait(["key"], GUARD)["key"].value == b"of round 8"


def at(
    number: int, node_rank: int, name: str, first: AgentServer, since: int = -1
) -> NodeAssignment:
    """A place in a round whose store is in the agent `first` of this name."""
    return NodeAssignment(
        round=number,
        restarts=0,
        node_rank=node_rank,
        num_nodes=2,
        first_rank=node_rank,
        world_size=2,
        master_addr="127.0.0.1",
        master_port=1,
        jax_port=2,
        store_node=name,
        store_endpoint=first.endpoint,
        since=since,
    )


def ignore(_: NodeAssignment) -> None:
    pass


def connect(served: ServedStore) -> StoreClient:
    return StoreClient.connect(served.endpoint, bytes.fromhex(served.secret), GUARD)


def exchange(here: ServedStore, there: ServedStore, earlier: ServedStore) -> None:
    with connect(here) as one, connect(there) as other, connect(earlier) as late:
        one.put("from/0", b"zero")
        other.put("from/1", b"one")
        found = other.wait(["from/0", "from/1"], GUARD)
        assert [found[key].value for key in sorted(found)] == [b"zero", b"one"]
        assert other.add("count", 2) == 2
        assert one.add("count", 1) == 3
        assert late.list("").items == ()


def finds_nothing(served: ServedStore) -> None:
    with connect(served) as client:
        assert client.list("").items == ()


# ---- where the nodes meet


def test_whoever_can_bind_the_address_serves_the_store() -> None:
    async def scenario() -> None:
        port = free_port()
        meetings = [await RendezvousStore.open(config(port), silent) for _ in range(3)]
        await meetings[2].store.put("key", b"value")
        for meeting in meetings:
            entry = await meeting.store.get("key")
            assert entry is not None
            assert entry.value == b"value"
        for meeting in reversed(meetings):
            await meeting.close()

    run(scenario)


def test_with_static_only_node_rank_0_serves_and_others_wait_for_it() -> None:
    async def scenario() -> None:
        port = free_port()
        said: asyncio.Queue[str] = asyncio.Queue()
        second = asyncio.create_task(
            RendezvousStore.open(config(port, "static", node_rank=1), said.put_nowait)
        )
        assert (await said.get()).startswith(f"waiting for the store at 127.0.0.1:{port}")
        first = await RendezvousStore.open(config(port, "static", node_rank=0), silent)
        await (await second).close()
        await first.close()

    run(scenario)


def test_who_is_to_serve_the_store_does_so_though_the_address_is_no_ones_here() -> None:
    async def scenario() -> None:
        port = free_port()
        elsewhere = {"endpoints": (Address("192.0.2.1", port),), "secret": OWN}
        host = await RendezvousStore.open(config(port, is_host=True, **elsewhere), silent)
        guest = await RendezvousStore.open(config(port, secret=OWN), silent)
        assert (host.is_host, guest.is_host) == (True, False)
        await guest.close()
        await host.close()

    run(scenario)


@pytest.mark.parametrize(("secret", "is_reached"), [("", False), (OWN, True)])
def test_without_a_secret_localhost_is_this_host_alone(secret: str, is_reached: bool) -> None:
    async def scenario() -> None:
        port = free_port()
        host = await RendezvousStore.open(config(port, secret=secret), silent)
        with socket.socket() as other:  # as from another address of this host
            other.settimeout(GUARD)
            assert (other.connect_ex(("127.0.0.2", port)) == 0) is is_reached
        await host.close()

    run(scenario)


def test_a_store_that_nobody_serves_is_given_up_after_the_join_timeout() -> None:
    async def scenario() -> None:
        # An address of documentation, which no host has and no way leads to.
        nowhere = RendezvousConfig(
            backend="tcp", endpoints=(Address("192.0.2.1", 1),), join_timeout=0.2, ttl=1.0
        )
        with pytest.raises(RendezvousTimeout, match="served by the agent on the host of that name"):
            await RendezvousStore.open(nowhere, silent)

    run(scenario)


def test_who_holds_the_port_of_the_store_is_named() -> None:
    async def scenario() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            held = config(port, join_timeout=0.2, ttl=1.0)
            with pytest.raises(RendezvousTimeout, match=rf"held by .* \(pid {os.getpid()}\)"):
                await RendezvousStore.open(held, silent)

    run(scenario)


def test_another_secret_is_refused_at_once() -> None:
    async def scenario() -> None:
        port = free_port()
        meeting = await RendezvousStore.open(config(port, secret="one"), silent)
        with pytest.raises(StoreError, match="does not know this job's secret"):
            await RendezvousStore.open(config(port, secret="another"), silent)
        await meeting.close()

    run(scenario)


def test_the_host_lingers_until_no_node_is_registered() -> None:
    async def scenario() -> None:
        port = free_port()
        host, guest = [await RendezvousStore.open(config(port), silent) for _ in range(2)]
        await guest.store.put("torsh/job/nodes/a", b"")
        lingering = asyncio.create_task(host.linger(host.store, "job"))
        await guest.store.put("torsh/job/nodes/a", b"again")
        await asyncio.sleep(0.05)
        assert not lingering.done()
        await guest.store.delete("torsh/job/nodes/a")
        await lingering
        await guest.linger(guest.store, "job")
        await guest.close()
        await host.close()

    run(scenario)
