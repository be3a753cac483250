"""A run in a store: followed as it changes, asked, and lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from support.rows import EPOCH, JobStore, begin, header, keys, node

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.base import Listing, Store
from torsh_runtime.store.memory import MemoryStore
from torshrun.config.values import Nodes
from torshrun.ctl.actions import STOPPED as STOP_CODE
from torshrun.ctl.actions import SteeredRun
from torshrun.ctl.picture import NotDone, Picture
from torshrun.ctl.run import Progress, run_ids
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import Header, NodeRow, SizeWanted, StopWanted, VerdictRow

BASE = rows.base("job")
STOPPED = VerdictRow(outcome="stopped", code=130, reason="enough")


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(30):
            await scene

    asyncio.run(guarded())


async def write(store: Store, *records: Header | NodeRow) -> None:
    for key, value in keys(*records).items():
        await store.put(BASE + key, value)


@asynccontextmanager
async def opened(
    *records: Header | NodeRow, store: MemoryStore | None = None
) -> AsyncGenerator[tuple[JobStore, SteeredRun], None]:
    store = store or MemoryStore()
    signed = await begin(store)
    await write(signed, *records)
    async with SteeredRun(store, "job", EPOCH.secret, 0).watched() as run:
        yield signed, run
    await store.close()


def test_runs_are_found_by_their_keys() -> None:
    async def scene() -> None:
        store = MemoryStore()
        runs = ("torsh/a/ctl/round", "torsh/a/nodes/x", "torsh/b%2Fc/nodes/y")
        for key in (*runs, "torsh/d/secret", "else/f"):
            await store.put(key, b"")
        assert await run_ids(store) == ["a", "b/c"]
        await store.close()

    play(scene())


def has_size(size: int, now: Picture) -> Progress:
    there = now.header.size if now.header else 0
    return Progress(there == size, f"{there} of {size}")


def test_a_change_is_waited_for_and_told_once() -> None:
    async def scene() -> None:
        async with opened(header()) as (store, run):
            said: asyncio.Queue[str] = asyncio.Queue()
            run.timeout, run.say = 20, said.put_nowait
            waiting = asyncio.create_task(run.wait(partial(has_size, 3)))
            assert await said.get() == "1 of 3"
            await write(store, node("a", 0))  # changes nothing that is told
            await asyncio.sleep(0.3)
            await write(store, header(size=2))
            assert await said.get() == "2 of 3"
            await write(store, header(size=3))
            assert await waiting == "3 of 3"
            assert said.empty()

    play(scene())


def test_what_does_not_happen_in_time_was_asked_for_all_the_same() -> None:
    async def scene() -> None:
        async with opened(header()) as (_, run):
            run.timeout = 0.1
            with pytest.raises(NotDone, match=r"not done after 0.1 s, but asked for: 1 of 2"):
                await run.wait(partial(has_size, 2))

    play(scene())


def test_a_store_that_ends_ends_the_wait() -> None:
    async def scene() -> None:
        async with opened(header()) as (store, run):
            run.timeout = 20
            await store.close()
            with pytest.raises(StoreError):
                await run.wait(partial(has_size, 2))

    play(scene())


def test_runs_that_there_are_answer_for_one_that_there_is_not() -> None:
    async def scene() -> None:
        store = MemoryStore()
        with pytest.raises(NotDone, match=r"no run 'jog' .* it holds no run$"):
            async with SteeredRun(store, "jog", EPOCH.secret, 0).watched():
                pass
        await write(await begin(store), header())
        assert await run_ids(store) == ["job"]
        with pytest.raises(NotDone, match=r"no run 'jog' .* its runs are: 'job'$"):
            async with SteeredRun(store, "jog", EPOCH.secret, 0).watched():
                pass
        await store.close()

    play(scene())


# ---- actions


@pytest.mark.parametrize(
    ("asked", "size", "wanted"),
    [
        ("3", Nodes(3, 3), (2, 3)),
        ("1", Nodes(1, 1), (1, 1)),
        ("3:5", Nodes(3, 5), (3, 5)),
    ],
)
def test_one_number_leaves_the_minimum_as_it_is(
    asked: str, size: Nodes, wanted: tuple[int, int]
) -> None:
    async def scene() -> None:
        async with opened(header(min_nodes=2), node("a", 0)) as (store, run):
            await run.scale(asked, size)
            entry = await store.get(BASE + rows.WANT_SIZE)
            assert entry
            assert rows.decode(SizeWanted, entry.value) == SizeWanted(
                min_nodes=wanted[0], max_nodes=wanted[1]
            )

    play(scene())


def test_a_job_of_fixed_ranks_keeps_its_size() -> None:
    async def scene() -> None:
        async with opened(header(), node("a", 0, fixed_rank=0)) as (store, run):
            with pytest.raises(NotDone, match="--node-rank"):
                await run.scale("3", Nodes(3, 3))
            assert await store.get(BASE + rows.WANT_SIZE) is None

    play(scene())


def test_nobody_is_asked_to_go_if_one_name_is_wrong() -> None:
    async def scene() -> None:
        async with opened(header(size=2), node("a", 0), node("b", 1)) as (store, run):
            with pytest.raises(NotDone):
                await run.drain(["a", "x"], force=False)
            assert (await store.list(BASE + rows.WANTS)).items == ()

    play(scene())


def test_before_the_first_round_no_node_can_be_told_to_go() -> None:
    """Only a round's header could: a node that was asked would stay, and count for nothing."""

    async def scene() -> None:
        async with opened(node("a", state="waiting"), node("b", state="waiting")) as (store, run):
            with pytest.raises(NotDone, match="has no round yet"):
                await run.drain(["a"], force=True)
            assert (await store.list(BASE + rows.WANTS)).items == ()

    play(scene())


def test_a_drain_is_asked_for_and_undone() -> None:
    async def scene() -> None:
        async with opened(header(size=2), node("a", 0), node("b", 1)) as (store, run):
            await run.drain(["a"], force=False)
            assert await store.get(BASE + rows.WANT_DRAIN + "a")
            assert await run.keep(["a"]) == "a stays"
            assert await store.get(BASE + rows.WANT_DRAIN + "a") is None

    play(scene())


def test_a_drain_that_has_been_told_is_not_undone() -> None:
    async def scene() -> None:
        async with opened(header(drained=("a",)), node("a", 0)) as (_, run):
            with pytest.raises(NotDone, match="too late: a"):
                await run.keep(["a"])

    play(scene())


def test_a_request_to_stop_does_not_outlive_the_run() -> None:
    async def scene() -> None:
        async with opened(header(), node("a", 0)) as (store, run):
            run.timeout = 20
            stopping = asyncio.create_task(run.stop("enough"))
            (entry,) = (await store.wait([BASE + rows.WANT_STOP], 20)).values()
            wanted = rows.decode(StopWanted, entry.value)
            assert wanted
            assert wanted.code == STOP_CODE
            assert wanted.reason.endswith(": enough")
            assert entry.lease
            await store.put(BASE + rows.VERDICT, rows.encode(STOPPED))
            await store.delete(BASE + rows.NODES + "a")
            assert await stopping == "run job has ended with code 130: stopped, enough"
            assert await store.get(BASE + rows.WANT_STOP) is None

    play(scene())


def test_a_run_that_ends_with_its_store_has_stopped() -> None:
    async def scene() -> None:
        async with opened(header(), node("a", 0)) as (store, run):
            run.timeout = 20
            stopping = asyncio.create_task(run.stop(""))
            await store.wait([BASE + rows.WANT_STOP], 20)
            await store.put(BASE + rows.VERDICT, rows.encode(STOPPED))
            await asyncio.sleep(0)
            await store.close()
            assert "has ended with code 130: stopped" in await stopping

    play(scene())


class Served(MemoryStore):
    """One that an agent serves: nobody listens there any more once it is closed."""

    async def list(self, prefix: str) -> Listing:
        try:
            return await super().list(prefix)
        except StoreError:
            raise StoreError("the connection failed") from ConnectionRefusedError()


def test_a_run_whose_store_goes_before_it_tells_how_it_ended_has_stopped() -> None:
    async def scene() -> None:
        async with opened(header(), node("a", 0), store=Served()) as (store, run):
            run.timeout = 20
            stopping = asyncio.create_task(run.stop(""))
            await store.wait([BASE + rows.WANT_STOP], 20)
            await store.close()
            assert await stopping == "run job has ended, and its store with it"

    play(scene())


def test_a_run_that_has_ended_can_be_asked_for_nothing() -> None:
    async def scene() -> None:
        async with opened(header(), node("a", 0)) as (store, _):
            await store.put(BASE + rows.VERDICT, rows.encode(STOPPED))
            async with SteeredRun(store._store, "job", EPOCH.secret, 0).watched() as run:
                for asking in (
                    run.scale("2", Nodes(2, 2)),
                    run.drain(["a"], force=True),
                    run.keep(["a"]),
                ):
                    with pytest.raises(NotDone, match="has ended with code 130: stopped"):
                        await asking
                assert "has ended" in await run.stop("")

    play(scene())


def test_each_change_is_shown_until_the_end() -> None:
    async def scene() -> None:
        async with opened(header(), node("a", 0)) as (store, run):
            shown: asyncio.Queue[Picture] = asyncio.Queue()
            watching = asyncio.create_task(run.watch(shown.put_nowait))
            await write(store, header(size=2))
            assert (await shown.get()).phase == "running"
            await store.put(BASE + rows.VERDICT, rows.encode(STOPPED))
            assert (await shown.get()).phase == "ended"
            await watching

    play(scene())


def test_watching_ends_when_nobody_is_left() -> None:
    async def scene() -> None:
        async with opened(header(), node("a", 0)) as (store, run):
            shown: list[Picture] = []
            watching = asyncio.create_task(run.watch(shown.append))
            await write(store, node("a", 0, state="left"))
            await watching
            assert shown[-1].phase == "abandoned"

    play(scene())


class Silent(MemoryStore):
    """One that does not answer any more once it is closed."""

    async def list(self, prefix: str) -> Listing:
        try:
            return await super().list(prefix)
        except StoreError:
            raise StoreTimeout("no answer") from None


def test_a_store_that_does_not_answer_any_more_is_no_run_that_does_not() -> None:
    async def scene() -> None:
        async with opened(header(), store=Silent()) as (store, run):
            run.timeout = 20
            await store.close()
            with pytest.raises(StoreTimeout):
                await run.wait(partial(has_size, 2))

    play(scene())


def test_a_node_that_comes_while_a_run_is_forgotten_stays() -> None:
    async def scene() -> None:
        async with opened(header()) as (store, run):
            await write(store, node("new", state="waiting"))
            with pytest.raises(NotDone, match="has 1 node"):
                await run.forget()
            assert await store.get(BASE + rows.NODES + "new")

    play(scene())


def test_a_run_that_changes_while_it_is_forgotten_is_left() -> None:
    async def scene() -> None:
        store = Changing()
        async with opened(header(), store=store) as (signed, run):
            store.meanwhile = write(signed, header(size=2))
            with pytest.raises(NotDone, match="has started again"):
                await run.forget()
            assert await store.get(BASE + rows.ROUND)

    play(scene())


def test_what_is_left_of_a_run_can_be_forgotten() -> None:
    async def scene() -> None:
        store = MemoryStore()
        await store.put(BASE + "secret", b"s")
        async with SteeredRun(store, "job", EPOCH.secret, 0).watched(even_traces=True) as run:
            assert await run.forget() == "run job is forgotten"
        assert (await store.list("")).items == ()
        with pytest.raises(NotDone):
            async with SteeredRun(store, "job", EPOCH.secret, 0).watched(even_traces=True):
                pass
        await store.close()

    play(scene())


def test_nothing_is_asked_of_a_run_that_nobody_is_left_of() -> None:
    async def scene() -> None:
        async with opened(header()) as (store, run):
            with pytest.raises(NotDone, match="no node of run job is left"):
                await run.stop("")
            assert not (await store.list(BASE + rows.WANTS)).items

    play(scene())


class Changing(MemoryStore):
    """One that somebody writes to between a listing and what is made of it."""

    meanwhile: Coroutine[Any, Any, None] | None = None

    async def list(self, prefix: str) -> Listing:
        listing = await super().list(prefix)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            await meanwhile
        return listing
