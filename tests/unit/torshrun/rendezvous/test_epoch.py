"""How a node finds the epoch of a run id, and what it does about a store that has lost it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Store
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.signed import SignedStore
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.epoch import Epoch, EpochJoin, JobUnknown, read_epoch
from torshrun.rendezvous.rows import VerdictRow
from torshrun.rendezvous.settings import Settings

OWN = b"a secret that is long enough"
SETTINGS = Settings(
    run_id="job",
    min_nodes=1,
    max_nodes=2,
    ttl=0.2,
    outage_timeout=0.1,
    join_timeout=5.0,
    close_timeout=1.0,
)
KEY = rows.base("job") + rows.EPOCH


def play(scene: Callable[[MemoryStore], Awaitable[None]]) -> None:
    async def guarded() -> None:
        store = MemoryStore()
        async with asyncio.timeout(20):
            await scene(store)
        await store.close()

    asyncio.run(guarded())


class Node:
    """One that enters, and what it was told meanwhile."""

    def __init__(self, store: Store, own: bytes = OWN, said: list[str] | None = None) -> None:
        clock = asyncio.get_running_loop().time
        asking = Asking(store, SETTINGS, clock, random.Random(1))
        self.entrance = EpochJoin(asking, own, (said if said is not None else []).append)

    async def enter(self, last: Epoch | None, *, may_begin: bool = True) -> Epoch:
        """Equal for all nodes."""
        return replace(await self.find(last, may_begin=may_begin), is_proven=False)

    async def find(self, last: Epoch | None, *, may_begin: bool = True) -> Epoch:
        epoch, listing = await self.entrance.enter(last, may_begin=may_begin)
        assert any(entry.revision == epoch.revision for entry in listing.items)
        return epoch


def entrance(store: Store, own: bytes = OWN, said: list[str] | None = None) -> Node:
    return Node(store, own, said)


@pytest.mark.parametrize("own", [OWN, b""])
def test_the_first_node_begins_an_epoch_and_the_others_find_it(own: bytes) -> None:
    async def scene(store: MemoryStore) -> None:
        first = await entrance(store, own).enter(None)
        assert await entrance(store, own).enter(None) == first
        assert first.secret == own or (not own and len(first.secret) == 32)
        entry = await store.get(KEY)
        assert entry is not None
        assert not own or own not in entry.value

    play(scene)


def test_keys_are_for_one_service_run_and_epoch() -> None:
    epochs = [Epoch("a", "x", "", OWN), Epoch("b", "x", "", OWN), Epoch("a", "y", "", OWN)]
    keys = {
        epoch.key(*what) for epoch in epochs for what in (("hub", "n"), ("hub", "m"), ("hubn",))
    }
    assert len(keys) == 9
    assert OWN not in keys


@pytest.mark.parametrize("own", [b"another secret, long too", b""])
def test_who_does_not_know_the_secret_of_a_job_that_lives_is_refused(own: bytes) -> None:
    async def scene(store: MemoryStore) -> None:
        epoch = await entrance(store).enter(None)
        signed, lease = SignedStore(store, epoch.records), await store.grant(60)
        await signed.put(rows.base("job") + rows.LEADER, b"somebody", lease)
        with pytest.raises(StoreError, match="must be the same everywhere"):
            await entrance(store, own).enter(None)
        assert await entrance(store).enter(None) == epoch

    play(scene)


def test_rows_on_no_lease_are_of_nobody_who_lives() -> None:
    async def scene(store: MemoryStore) -> None:
        old = await entrance(store).enter(None)
        await store.put(rows.base("job") + rows.NODES + "somebody", b"something")
        await store.put(rows.base("job") + rows.LEADER, b"something")
        assert await entrance(store, b"another secret, long too").enter(None) != old

    play(scene)


def test_a_job_that_died_does_not_bar_the_next_which_has_another_secret() -> None:
    async def scene(store: MemoryStore) -> None:
        said: list[str] = []
        old = await entrance(store).enter(None)
        new = await entrance(store, b"another secret, long too", said).enter(None)
        assert new.name != old.name
        assert "an earlier job of this run id" in said[0]

    play(scene)


def test_an_epoch_goes_with_its_job() -> None:
    async def scene(store: MemoryStore) -> None:
        said: list[str] = []
        old = await entrance(store).enter(None)
        lease = await store.grant(0.3)
        signed = SignedStore(store, old.records)
        verdict = VerdictRow(outcome="succeeded", code=0, reason="done")
        epoch = await signed.get(KEY)
        assert epoch is not None
        await signed.put(KEY, epoch.value, lease)
        await signed.put(rows.base("job") + rows.VERDICT, rows.encode(verdict), lease)
        new = await entrance(store, said=said).enter(None)
        assert new.name != old.name
        assert "the run id will soon be free again" in said[0]

    play(scene)


def test_a_store_that_came_back_older_gets_a_new_epoch_which_all_go_on_in() -> None:
    async def scene(store: MemoryStore) -> None:
        a, b = entrance(store), entrance(store)
        old = await a.enter(None)
        assert await b.enter(None) == old
        new = await a.enter(old)  # what it holds looks as before
        assert (new.name != old.name, new.after) == (True, old.name)
        assert await b.enter(old) == new

    play(scene)


def test_an_epoch_that_was_left_never_comes_back() -> None:
    async def scene(store: MemoryStore) -> None:
        node = entrance(store)
        old = await node.enter(None)
        kept = await store.get(KEY)
        assert kept is not None
        await store.delete(KEY)
        new = await node.enter(old)
        await store.put(KEY, kept.value)
        assert (await node.enter(new)).name not in (old.name, new.name)

    play(scene)


def test_an_epoch_of_the_past_that_is_put_back_takes_nobody_in() -> None:
    async def scene(store: MemoryStore) -> None:
        await entrance(store).enter(None)  # of a job with the same secret that has ended
        past = await store.get(KEY)
        assert past is not None
        await store.delete(KEY)
        a, b = entrance(store), entrance(store)
        present = await a.enter(None)
        assert await b.enter(None) == present
        await store.put(KEY, past.value)
        new = await a.enter(present)
        assert (new.after, new.name != present.name) == (present.name, True)
        assert await b.enter(present) == new

    play(scene)


def test_who_came_first_to_an_emptied_store_follows_those_who_were_there_before() -> None:
    async def scene(store: MemoryStore) -> None:
        old, newcomer = entrance(store), entrance(store)
        before = await old.enter(None)
        await store.delete(KEY)
        own = await newcomer.enter(None)
        new = await old.enter(before)
        assert (new.after, new.past) == (before.name, (before.name, own.name))
        assert await newcomer.enter(own) == new

    play(scene)


@pytest.mark.parametrize("garbage", [b"x", b""])
def test_garbage_in_the_place_of_an_epoch_ends_no_job_that_was_there(garbage: bytes) -> None:
    async def scene(store: MemoryStore) -> None:
        node = entrance(store)
        old = await node.enter(None)
        await SignedStore(store, old.records).put(rows.base("job") + rows.LEADER, b"somebody")
        await store.put(KEY, garbage)
        assert (await node.enter(old)).after == old.name

    play(scene)


def test_made_up_secrets_outlive_a_store_that_is_wiped() -> None:
    async def scene(store: MemoryStore) -> None:
        node = entrance(store, b"")
        old = await node.enter(None)
        await store.delete(KEY)
        assert (await node.enter(old)).secret == old.secret

    play(scene)


def test_who_was_away_when_an_epoch_ended_begins_none() -> None:
    async def scene(store: MemoryStore) -> None:
        node = entrance(store)
        old = await node.enter(None)
        await store.delete(KEY)
        with pytest.raises(JobUnknown, match="how the job ended is not known here"):
            await node.enter(old, may_begin=False)
        assert await store.get(KEY) is None
        again = asyncio.create_task(node.enter(old, may_begin=False))
        new = await entrance(store).enter(None)
        assert await again == new

    play(scene)


@pytest.mark.parametrize(
    "value",
    [b"", b"\n", b"{}", b"[" * 100_000, b'{"name": "' + b"a" * 32 + b'"}\n' + b"0" * 32],
)
def test_garbage_is_no_epoch(value: bytes) -> None:
    async def scene(store: MemoryStore) -> None:
        await store.put(KEY, value)
        entry = await store.get(KEY)
        assert entry is not None
        assert read_epoch("job", OWN, entry) is None
        assert read_epoch("job", b"", entry) is None

    play(scene)


def test_a_verdict_that_is_put_back_is_waited_for_no_longer_than_one_stands() -> None:
    async def scene(store: MemoryStore) -> None:
        said: list[str] = []
        old = await entrance(store).enter(None)
        signed = SignedStore(store, old.records)
        verdict = VerdictRow(outcome="failed", code=1, reason="")
        await signed.put(rows.base("job") + rows.VERDICT, rows.encode(verdict))
        new = await entrance(store, said=said).enter(None)
        assert (new.name != old.name, new.past) == (True, (old.name,))
        assert "the last job of this run id has ended" in said[0]

    play(scene)


def test_an_epoch_is_proven_to_who_began_it_or_was_in_the_one_before() -> None:
    async def scene(store: MemoryStore) -> None:
        a, b = entrance(store), entrance(store)
        old = await a.find(None)
        assert old.is_proven
        assert not (await b.find(None)).is_proven
        new = await a.find(old)
        assert new.is_proven
        assert (await b.find(old)).is_proven
        assert not (await b.find(None)).is_proven

    play(scene)


def test_an_epoch_that_nobody_answers_for_is_replaced() -> None:
    async def scene(store: MemoryStore) -> None:
        old = await entrance(store).find(None)
        node = entrance(store)
        assert (await node.enter(None)).name == old.name
        node.entrance.abandon(old)
        new = await node.find(None)
        assert (new.name != old.name, new.past, new.is_proven) == (True, (old.name,), True)

    play(scene)


def test_nodes_of_many_epochs_come_together_though_each_began_its_own() -> None:
    async def scene(store: MemoryStore) -> None:
        nodes = [entrance(store) for _ in range(8)]
        lasts = []
        for node in nodes:  # each is alone with an empty store for a while
            lasts.append(await node.enter(None))
            await store.delete(KEY)
        for node, last in zip(nodes[1:], lasts[1:], strict=True):
            newest = await node.enter(last)
        assert newest.past[0] == lasts[-1].name
        assert await nodes[1].enter(lasts[1]) == newest  # it has seen none of those in between
        assert await nodes[0].enter(lasts[0]) != newest  # that was gone before the others came

    play(scene)


def test_an_epoch_names_some_of_those_before_it() -> None:
    async def scene(store: MemoryStore) -> None:
        node = entrance(store)
        last = await node.enter(None)
        for _ in range(100):
            last = await node.enter(last)
        assert len(last.past) == 64

    play(scene)
