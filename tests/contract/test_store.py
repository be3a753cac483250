"""What every Store keeps, whatever stands behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.base import Compare, Delete, Entry, Event, Outcome, Put
from torsh_runtime.store.state import KeyValueState

GUARD = 60.0


def take(watch: Any, count: int) -> list[Event]:
    return [watch.next(GUARD) for _ in range(count)]


def test_get_of_an_absent_key_is_none(store: Any) -> None:
    assert store.get("absent") is None


def test_put_then_get(store: Any) -> None:
    revision = store.put("a", b"1")
    assert store.get("a") == Entry("a", b"1", revision, 0)


def test_each_change_has_the_next_revision(store: Any) -> None:
    first = store.put("a", b"1")
    assert store.put("a", b"1") == first + 1
    assert store.delete("a")
    assert store.put("b", b"") == first + 3
    store.get("b")
    assert store.list("").revision == first + 3


def test_delete_says_whether_the_key_was_there(store: Any) -> None:
    revision = store.put("a", b"1")
    assert store.delete("a") is True
    assert store.delete("a") is False
    assert store.get("a") is None
    assert store.list("").revision == revision + 1


def test_list_is_sorted_and_keeps_to_the_prefix(store: Any) -> None:
    for key in ("b/2", "b/10", "a", "b", "c", "b/\u00e9", "b/\U0001f525"):
        store.put(key, key.encode())
    listing = store.list("b/")
    assert [e.key for e in listing.items] == ["b/10", "b/2", "b/\u00e9", "b/\U0001f525"]
    assert [e.value for e in listing.items] == [e.key.encode() for e in listing.items]
    assert len(store.list("").items) == 7
    assert store.list("zz").items == ()


@pytest.mark.parametrize(
    "value", [b"", bytes(range(256)), b"\x00", b"x" * (5 << 20)], ids=["empty", "all", "nul", "5M"]
)
def test_values_are_any_bytes(store: Any, value: bytes) -> None:
    store.put("k", value)
    assert store.get("k").value == value
    assert store.wait(["k"], GUARD)["k"].value == value


@pytest.mark.parametrize("key", ["\u043a\u043b\u044e\u0447", "a b\n", "\u0000", "\U0001f525" * 50])
def test_keys_are_any_text(store: Any, key: str) -> None:
    store.put(key, b"1")
    assert store.get(key).key == key
    assert [e.key for e in store.list(key[:1]).items] == [key]


@pytest.mark.parametrize("key", ["", "\ud800"])
def test_impossible_keys_are_refused(store: Any, key: str) -> None:
    before = store.list("").revision
    for call in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.delete(key),
        lambda: store.add(key, 1),
        lambda: store.wait([key], 0),
        lambda: store.transact([Compare(key, 0)], []),
        lambda: store.transact([], [Delete(key)]),
    ):
        with pytest.raises(StoreError):
            call()
    assert store.list("").revision == before


def test_values_must_be_bytes(store: Any) -> None:
    with pytest.raises(StoreError):
        store.put("a", "text")
    store.put("a", b"the store still works")


# --- transactions ---


def test_a_transaction_makes_all_writes_as_one_change(store: Any) -> None:
    a = store.put("a", b"1")
    writes = [Put("b", b"2"), Delete("a"), Put("c", b"3"), Delete("absent")]
    outcome = store.transact([Compare("a", a), Compare("b", 0)], writes)
    assert outcome == Outcome(True, a + 1)
    assert [(e.key, e.revision) for e in store.list("").items] == [("b", a + 1), ("c", a + 1)]


@pytest.mark.parametrize("condition", [("a", 0), ("a", 99), ("b", 1)])
def test_a_failed_condition_leaves_everything(store: Any, condition: tuple[str, int]) -> None:
    a = store.put("a", b"1")
    outcome = store.transact(
        [Compare("a", a), Compare(*condition)], [Put("a", b"2"), Put("b", b"2")]
    )
    assert outcome == Outcome(False, a)
    assert store.list("").items == (Entry("a", b"1", a, 0),)


def test_a_refused_write_leaves_everything(store: Any) -> None:
    revision = store.put("a", b"1")
    for writes in (
        [Put("b", b"2"), Put("c", b"3", 12345)],
        [Put("b", b"2"), Delete("b")],
        [Put("b", b"2"), Put("", b"")],
    ):
        with pytest.raises(StoreError):
            store.transact([], writes)
    assert store.list("").items == (Entry("a", b"1", revision, 0),)
    assert store.list("").revision == revision


def test_a_transaction_without_effect_is_no_change(store: Any) -> None:
    revision = store.put("a", b"1")
    assert store.transact([Compare("a", revision)], []) == Outcome(True, revision)
    assert store.transact([], [Delete("absent")]) == Outcome(True, revision)


def test_of_many_who_create_a_key_one_succeeds(store: Any) -> None:
    def create(number: int) -> bool:
        outcome = store.transact([Compare("leader", 0)], [Put("leader", str(number).encode())])
        return bool(outcome.succeeded)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(32))) == 1


# --- counters ---


def test_add_counts_in_decimal_text(store: Any) -> None:
    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.get("n").value == b"-2"
    store.put("n", b"40")
    assert store.add("n", 2) == 42


def test_add_refuses_what_is_no_number(store: Any) -> None:
    store.put("n", b"many")
    with pytest.raises(StoreError, match="many"):
        store.add("n", 1)
    assert store.get("n").value == b"many"


def test_add_refuses_to_leave_64_bits(store: Any) -> None:
    store.add("n", 2**63 - 1)
    with pytest.raises(StoreError):
        store.add("n", 1)
    assert store.get("n").value == str(2**63 - 1).encode()


def test_concurrent_adds_are_all_counted(store: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(lambda _: store.add("n", 1), range(400)))
    assert sorted(totals) == list(range(1, 401))


def test_add_keeps_the_lease(store: Any) -> None:
    lease = store.grant(GUARD)
    store.put("n", b"1", lease)
    store.add("n", 1)
    assert store.get("n").lease == lease


# --- waiting ---


def test_wait_for_keys_that_exist_returns_them(store: Any) -> None:
    store.put("a", b"1")
    store.put("b", b"2")
    found = store.wait(["a", "b", "a"], 0)
    assert {key: entry.value for key, entry in found.items()} == {"a": b"1", "b": b"2"}
    assert store.wait([], 0) == {}


def test_wait_ends_when_the_last_key_appears(store: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.wait, ["a", "b"], GUARD)
        store.put("b", b"2")
        store.put("unrelated", b"")
        store.put("a", b"1")
        assert {entry.value for entry in found.result(GUARD).values()} == {b"1", b"2"}


def test_wait_names_the_missing_keys(store: Any) -> None:
    store.put("here", b"")
    with pytest.raises(StoreTimeout, match=r"missing.*'gone/1'.*'gone/2'"):
        store.wait(["gone/1", "here", "gone/2"], 0.05)


def test_wait_with_timeout_zero_only_looks(store: Any) -> None:
    with pytest.raises(StoreTimeout, match="nowhere"):
        store.wait(["nowhere"], 0)


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf")])
def test_wait_refuses_an_impossible_timeout(store: Any, timeout: float) -> None:
    with pytest.raises(StoreError):
        store.wait(["a"], timeout)


def test_a_wait_holds_up_nobody(store: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(store.wait, [f"k{i}"], GUARD) for i in range(8)]
        for i in range(8):
            store.put(f"k{i}", b"")
        for wait in waits:
            wait.result(GUARD)


# --- leases ---


def test_keys_vanish_with_their_lease(store: Any) -> None:
    lease = store.grant(0.2)
    store.put("leased", b"1", lease)
    revision = store.put("kept", b"2")
    with store.watch("", revision) as watch:
        assert watch.next(GUARD) == Event("delete", "leased", b"", revision + 1)
    assert store.get("leased") is None
    assert store.get("kept") is not None


def test_an_ended_lease_cannot_be_renewed_or_used(store: Any) -> None:
    lease = store.grant(0.05)
    revision = store.put("leased", b"1", lease)
    with store.watch("", revision) as watch:
        watch.next(GUARD)
    with pytest.raises(StoreError, match=str(lease)):
        store.keep_alive(lease)
    with pytest.raises(StoreError, match=str(lease)):
        store.put("a", b"", lease)
    store.revoke(lease)


def test_revoke_deletes_the_keys_as_one_change(store: Any) -> None:
    lease = store.grant(GUARD)
    assert lease > 0
    store.put("b", b"", lease)
    revision = store.put("a", b"", lease)
    store.keep_alive(lease)
    store.revoke(lease)
    with store.watch("", revision) as watch:
        assert {(e.kind, e.key, e.revision) for e in take(watch, 2)} == {
            ("delete", "a", revision + 1),
            ("delete", "b", revision + 1),
        }
    with pytest.raises(StoreError):
        store.keep_alive(lease)


def test_a_key_written_again_leaves_its_lease(store: Any) -> None:
    lease, other = store.grant(GUARD), store.grant(GUARD)
    assert lease != other
    for key in ("free", "moved", "again"):
        store.put(key, b"", lease)
    store.put("free", b"")
    store.put("moved", b"", other)
    store.delete("again")
    store.put("again", b"")
    store.revoke(lease)
    assert [(e.key, e.lease) for e in store.list("").items] == [
        ("again", 0),
        ("free", 0),
        ("moved", other),
    ]


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_leases_are_refused(store: Any, ttl: float) -> None:
    with pytest.raises(StoreError):
        store.grant(ttl)


# --- watches ---


def test_watch_gives_past_and_future_changes_in_order(store: Any) -> None:
    first = store.put("w/a", b"1")
    store.put("other", b"")
    store.put("w/b", b"2")
    with store.watch("w/", first) as watch:
        assert watch.next(GUARD) == Event("put", "w/b", b"2", first + 2)
        store.put("other", b"")
        store.delete("w/a")
        store.put("w/b", b"3")
        assert take(watch, 2) == [
            Event("delete", "w/a", b"", first + 4),
            Event("put", "w/b", b"3", first + 5),
        ]


def test_watch_from_a_listing_misses_nothing(store: Any) -> None:
    stop = threading.Event()

    def write() -> None:
        for number in range(300):
            store.put(f"w/{number}", b"")
        stop.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        listing = store.list("w/")
        with store.watch("w/", listing.revision) as watch:
            events = take(watch, 300 - len(listing.items))
        writing.result(GUARD)
    keys = [e.key for e in listing.items] + [e.key for e in events]
    assert sorted(keys) == sorted(f"w/{number}" for number in range(300))
    revisions = [e.revision for e in events]
    assert revisions == sorted(set(revisions))


def test_watch_without_events_times_out_and_goes_on(store: Any) -> None:
    with store.watch("w/", 0) as watch:
        with pytest.raises(StoreTimeout):
            watch.next(0.05)
        store.put("w/a", b"1")
        assert watch.next(GUARD).key == "w/a"


def test_many_watches_see_the_same(store: Any) -> None:
    with store.watch("", 0) as one, store.watch("", 0) as two:
        store.put("a", b"1")
        store.transact([], [Put("b", b"2"), Delete("a")])
        assert take(one, 3) == take(two, 3)


def test_a_forgotten_history_is_an_error(open_store: Callable[..., Any]) -> None:
    store = open_store(state=KeyValueState(max_events=4))
    first = store.put("a", b"0")
    for number in range(1, 10):
        store.put("a", str(number).encode())
    with (
        store.watch("", first + 2) as watch,
        pytest.raises(StoreError, match="List the prefix again"),
    ):
        watch.next(GUARD)
    with store.watch("", first + 5) as watch:
        assert [e.value for e in take(watch, 4)] == [b"6", b"7", b"8", b"9"]


# --- closing ---


def test_close_ends_waits_and_watches(store: Any) -> None:
    store.put("a", b"")
    with ThreadPoolExecutor(2) as pool, store.watch("", 0) as watch:
        watch.next(GUARD)
        event = pool.submit(watch.next, GUARD)
        wait = pool.submit(store.wait, ["never"], GUARD)
        store.close()
        for pending in (event, wait):
            with pytest.raises(StoreError) as raised:
                pending.result(GUARD)
            assert not isinstance(raised.value, StoreTimeout)
    with pytest.raises(StoreError, match="closed"):
        store.get("a")
    store.close()
