"""What agents of several nodes have between them, before any rendezvous: stores and beats."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from torsh_runtime.errors import RendezvousTimeout, StoreError
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.remote import RemoteStore
from torshrun.config.rendezvous import Address, Backend, RendezvousConfig
from torshrun.rendezvous.beats import Beat
from torshrun.rendezvous.hub import Hub
from torshrun.rendezvous.meeting import Meeting, agree_on_secret

SECRET = b"the job's secret"
BEAT = Beat("a", 3, "token", 1, 0)
GUARD = 30.0


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(GUARD):
            await scenario()

    asyncio.run(guarded())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def config(port: int, backend: Backend = "tcp", **more: object) -> RendezvousConfig:
    settings = {"backend": backend, "endpoints": (Address("127.0.0.1", port),), **more}
    return RendezvousConfig(**settings)  # type: ignore[arg-type]


def silent(text: str) -> None:
    """Nobody needs to be told."""


@asynccontextmanager
async def hubs(*secrets: bytes) -> AsyncIterator[list[Hub]]:
    async with AsyncExitStack() as stack:
        opened = []
        for secret in secrets:
            opened.append(await Hub.open("127.0.0.1", secret))
            stack.push_async_callback(opened[-1].close)
        yield opened


# ---- signs of life


def test_the_leader_answers_beats_as_it_judges() -> None:
    async def scenario() -> None:
        async with hubs(SECRET, SECRET) as (leader, member):
            heard: list[Beat] = []

            def judge(beat: Beat) -> bool:
                heard.append(beat)
                return beat.round == 3

            leader.serve(judge)
            assert await member.beat(leader.endpoint, 1, BEAT, GUARD) == "granted"
            other = Beat("a", 4, "token", 2, 1)
            assert await member.beat(leader.endpoint, 1, other, GUARD) == "refused"
            assert heard == [BEAT, other]
            leader.serve(None)
            assert await member.beat(leader.endpoint, 2, BEAT, GUARD) == "refused"

    run(scenario)


def test_a_leader_that_ended_is_gone_and_one_that_is_silent_is_not() -> None:
    async def scenario() -> None:
        async with hubs(SECRET, SECRET) as (leader, member):
            leader.serve(lambda beat: True)
            assert await member.beat(leader.endpoint, 1, BEAT, GUARD) == "granted"
            await leader.close()
            answers = [await member.beat(leader.endpoint, 1, BEAT, GUARD) for _ in range(2)]
            assert answers[-1] == "gone"
            with socket.create_server(("127.0.0.1", 0)) as deaf:
                endpoint = f"tcp:127.0.0.1:{deaf.getsockname()[1]}"
                assert await member.beat(endpoint, 1, BEAT, 0.1) == "silent"

    run(scenario)


def test_nobody_gets_in_without_the_secret() -> None:
    async def scenario() -> None:
        async with hubs(SECRET, b"another") as (leader, stranger):
            leader.serve(lambda beat: True)
            assert await stranger.beat(leader.endpoint, 1, BEAT, GUARD) == "silent"

    run(scenario)


def test_nonsense_in_the_place_of_a_beat_is_refused() -> None:
    async def scenario() -> None:
        async with hubs(SECRET) as (leader,):
            leader.serve(lambda beat: True)
            store = RemoteStore(leader.endpoint, SECRET)
            for nonsense in (b"", b"\xff\xff", b"\x95\x01\x01\x01\x01\x01"):
                with pytest.raises(StoreError, match="no sign of life"):
                    await store.put("beat", nonsense)
            await store.close()

    run(scenario)


# ---- stores of rounds


def test_workers_of_all_nodes_share_the_rounds_store_and_no_other() -> None:
    async def scenario() -> None:
        async with hubs(SECRET, SECRET) as (first, second):
            here = await first.serve_round(7)
            there = await second.forward_round(7, first.endpoint)
            earlier = await first.serve_round(6)
            await asyncio.to_thread(exchange, here.endpoint, there.endpoint, earlier.endpoint)
            await there.close()
            await here.close()
            again = await first.serve_round(7)
            await asyncio.to_thread(finds_nothing, again.endpoint)
            await again.close()
            await earlier.close()

    run(scenario)


def exchange(here: str, there: str, earlier: str) -> None:
    with (
        StoreClient.connect(here, SECRET, GUARD) as one,
        StoreClient.connect(there, SECRET, GUARD) as other,
        StoreClient.connect(earlier, SECRET, GUARD) as late,
    ):
        one.put("from/0", b"zero")
        other.put("from/1", b"one")
        found = other.wait(["from/0", "from/1"], GUARD)
        assert [found[key].value for key in sorted(found)] == [b"zero", b"one"]
        assert other.add("count", 2) == 2
        assert one.add("count", 1) == 3
        assert late.list("").items == ()


def finds_nothing(endpoint: str) -> None:
    with StoreClient.connect(endpoint, SECRET, GUARD) as client:
        assert client.list("").items == ()


# ---- where the nodes meet


def test_whoever_can_bind_the_address_serves_the_store() -> None:
    async def scenario() -> None:
        port = free_port()
        meetings = [await Meeting.open(config(port), silent) for _ in range(3)]
        await meetings[2].store.put("key", b"value")
        for meeting in meetings:
            entry = await meeting.store.get("key")
            assert entry is not None
            assert entry.value == b"value"
        for meeting in reversed(meetings):
            await meeting.close()

    run(scenario)


def test_all_agree_on_the_secret_that_the_first_made_up() -> None:
    async def scenario() -> None:
        port = free_port()
        meetings = [await Meeting.open(config(port), silent) for _ in range(2)]
        secrets = [await agree_on_secret(meeting.store, "j", "") for meeting in meetings]
        assert secrets[0] == secrets[1]
        assert len(secrets[0]) == 32
        assert await agree_on_secret(meetings[0].store, "k", "") != secrets[0]
        assert await agree_on_secret(meetings[0].store, "j", "mine") == b"mine"
        for meeting in reversed(meetings):
            await meeting.close()

    run(scenario)


def test_with_static_only_node_rank_0_serves_and_others_wait_for_it() -> None:
    async def scenario() -> None:
        port = free_port()
        said: asyncio.Queue[str] = asyncio.Queue()
        second = asyncio.create_task(
            Meeting.open(config(port, "static", node_rank=1), said.put_nowait)
        )
        assert (await said.get()).startswith(f"waiting for the store at 127.0.0.1:{port}")
        first = await Meeting.open(config(port, "static", node_rank=0), silent)
        await (await second).close()
        await first.close()

    run(scenario)


def test_a_store_that_nobody_serves_is_given_up_after_the_join_timeout() -> None:
    async def scenario() -> None:
        # An address of documentation, which no host has and no way leads to.
        nowhere = RendezvousConfig(
            backend="tcp", endpoints=(Address("192.0.2.1", 1),), join_timeout=0.2, ttl=1.0
        )
        with pytest.raises(RendezvousTimeout, match="served by the agent on the host of that name"):
            await Meeting.open(nowhere, silent)

    run(scenario)


def test_who_holds_the_port_of_the_store_is_named() -> None:
    async def scenario() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            held = config(port, join_timeout=0.2, ttl=1.0)
            with pytest.raises(RendezvousTimeout, match=rf"held by .* \(pid {os.getpid()}\)"):
                await Meeting.open(held, silent)

    run(scenario)


def test_another_secret_is_refused_at_once() -> None:
    async def scenario() -> None:
        port = free_port()
        meeting = await Meeting.open(config(port, secret="one"), silent)
        with pytest.raises(StoreError, match="does not know this job's secret"):
            await Meeting.open(config(port, secret="another"), silent)
        await meeting.close()

    run(scenario)


def test_the_host_lingers_until_no_node_is_registered() -> None:
    async def scenario() -> None:
        port = free_port()
        host, guest = [await Meeting.open(config(port), silent) for _ in range(2)]
        await guest.store.put("torsh/j/nodes/a", b"")
        lingering = asyncio.create_task(host.linger("j"))
        await guest.store.put("torsh/j/nodes/a", b"again")
        await asyncio.sleep(0.05)
        assert not lingering.done()
        await guest.store.delete("torsh/j/nodes/a")
        await lingering
        await guest.linger("j")
        await guest.close()
        await host.close()

    run(scenario)
