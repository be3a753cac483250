"""Values that are signed for their keys, and stores that lose what they held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Delete, Put
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.signed import SignedStore, sign, verified

SECRET = b"a secret that is long enough"


def play(scene: Callable[[MemoryStore, SignedStore, list[str]], Awaitable[None]]) -> None:
    async def guarded() -> None:
        forged: list[str] = []
        inner = MemoryStore()
        async with asyncio.timeout(20):
            await scene(inner, SignedStore(inner, SECRET, on_forged=forged.append), forged)
        await inner.close()

    asyncio.run(guarded())


def test_a_signature_is_of_one_value_under_one_key_on_one_lease_by_one_secret() -> None:
    signed = sign(SECRET, "key", b"value", 7)
    assert verified(SECRET, "key", signed, 7) == b"value"
    assert verified(SECRET, "key", signed, 0) == b""
    assert verified(SECRET, "other", signed, 7) == b""
    assert verified(b"another", "key", signed, 7) == b""
    for at in range(len(signed)):
        changed = signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :]
        assert verified(SECRET, "key", changed, 7) == b""
    assert verified(SECRET, "key", sign(SECRET, "keyv", b"alue", 7), 7) == b""
    assert verified(SECRET, "key", b"", 7) == b""


def test_what_is_not_signed_reads_as_empty_wherever_it_is_read() -> None:
    async def scene(inner: MemoryStore, store: SignedStore, forged: list[str]) -> None:
        await store.put("a", b"mine")
        await inner.put("b", b"theirs")
        moved = await inner.get("a")
        assert moved is not None
        revision = await inner.put("c", moved.value)
        values = {item.key: item.value for item in (await store.list("")).items}
        assert values == {"a": b"mine", "b": b"", "c": b""}
        entry = await store.get("c")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"", revision)
        found = await store.wait(["a", "b"], 1)
        assert [found["a"].value, found["b"].value] == [b"mine", b""]
        async with aclosing(store.watch("", 0)) as events:
            assert [(await anext(events)).value for _ in range(3)] == [b"mine", b"", b""]
        assert set(forged) == {"b", "c"}

    play(scene)


def test_what_was_written_on_a_lease_counts_on_that_lease_alone() -> None:
    """Nobody else can keep a node's row alive."""

    async def scene(inner: MemoryStore, store: SignedStore, _: list[str]) -> None:
        lease, other = await inner.grant(60), await inner.grant(60)
        await store.put("a", b"mine", lease)
        entry = await inner.get("a")
        assert entry is not None
        for instead in (0, other, lease):
            await inner.put("a", entry.value, instead)
        async with aclosing(store.watch("", 0)) as events:
            values = [(await anext(events)).value for _ in range(4)]
        assert values == [b"mine", b"", b"", b"mine"]

    play(scene)


def test_nothing_is_written_unless_the_guards_hold() -> None:
    async def scene(inner: MemoryStore, _: SignedStore, __: list[str]) -> None:
        stands = await inner.put("guard", b"")
        store = SignedStore(inner, SECRET, Compare("guard", stands))
        assert (await store.transact((), (Put("a", b"1"),))).succeeded
        await inner.put("guard", b"")
        assert not (await store.transact((), (Delete("a"),))).succeeded
        with pytest.raises(StoreError, match="does not stand there"):
            await store.put("b", b"2")

    play(scene)


def test_an_answer_from_an_earlier_revision_is_told() -> None:
    async def scene(inner: MemoryStore, _: SignedStore, __: list[str]) -> None:
        told: list[bool] = []
        store = SignedStore(inner, SECRET, on_older=lambda: told.append(True))
        for _turn in range(3):
            await store.put("a", b"1")
        store._store = MemoryStore()
        await store.list("")
        assert told == [True]

    play(scene)


def test_an_empty_value_cannot_be_signed() -> None:
    async def scene(_: MemoryStore, store: SignedStore, __: list[str]) -> None:
        with pytest.raises(StoreError, match="is empty"):
            await store.put("a", b"")

    play(scene)
