"""KeyValueState against a plain model, and its leases and history by the clock it is given."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Delete, Event, Put
from torsh_runtime.store.state import KeyValueState

KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "\u00e9"])
WRITES = st.lists(
    st.builds(Put, KEYS, st.binary(max_size=3), st.just(0)) | st.builds(Delete, KEYS),
    max_size=4,
    unique_by=lambda write: write.key,
)
STEPS = st.lists(st.tuples(st.lists(st.builds(Compare, KEYS, st.integers(0, 3))), WRITES))


def put(state: KeyValueState, key: str, value: bytes = b"", lease: int = 0) -> tuple[Event, ...]:
    return state.transact((), (Put(key, value, lease),)).events


@given(STEPS)
def test_replaying_the_events_gives_the_state(
    steps: list[tuple[list[Compare], list[Put | Delete]]],
) -> None:
    state = KeyValueState()
    replayed: dict[str, tuple[bytes, int]] = {}
    for compares, writes in steps:
        before = state.revision
        (succeeded, revision), events = state.transact(compares, writes)
        assert revision == state.revision == before + bool(events)
        assert succeeded or not events
        for event in events:
            assert event.revision == revision
            if event.kind == "put":
                replayed[event.key] = (event.value, revision)
            else:
                del replayed[event.key]
        items = state.listing("").items
        assert [e.key for e in items] == sorted(replayed)
        assert {e.key: (e.value, e.revision) for e in items} == replayed
    assert state.events_after("", state.revision) == ()


@given(STEPS, st.integers(1, 5), st.integers(0, 10), st.sampled_from(["", "a", "a/", "b"]))
def test_history_is_whole_or_refused(
    steps: list[tuple[list[Compare], list[Put | Delete]]], limit: int, after: int, prefix: str
) -> None:
    state, all_events = KeyValueState(max_events=limit), []
    for compares, writes in steps:
        all_events += state.transact(compares, writes).events
    wanted = [e for e in all_events if e.revision > after and e.key.startswith(prefix)]
    try:
        assert [*state.events_after(prefix, after)] == wanted
    except StoreError:
        assert after < state.compacted
        assert len(all_events) > limit


def test_history_is_bounded_in_bytes() -> None:
    state = KeyValueState(max_bytes=100)
    for _ in range(10):
        put(state, "k", bytes(30))
    assert state.compacted == 7
    assert len(state.events_after("", 7)) == 3
    put(state, "k", bytes(200))
    assert state.compacted == state.revision
    assert state.get("k") is not None


def test_leases_end_by_the_clock_given_the_earliest_first() -> None:
    state = KeyValueState()
    late, early = state.grant(5.0, now=100.0), state.grant(3.0, now=100.0)
    put(state, "late", lease=late)
    put(state, "early", lease=early)
    assert state.next_end() == 103.0
    assert state.expire(102.9) == ()
    state.keep_alive(early, now=102.5)
    assert state.expire(104.0) == ()
    assert [e.key for e in state.expire(110.0)] == ["late", "early"]
    assert state.next_end() == math.inf
    assert state.listing("").items == ()


def test_each_lease_ends_as_one_revision() -> None:
    state = KeyValueState()
    lease = state.grant(1.0, now=0.0)
    for key in "cab":
        put(state, key, lease=lease)
    assert [(e.key, e.revision) for e in state.expire(1.0)] == [("a", 4), ("b", 4), ("c", 4)]


def test_revoking_an_ended_lease_does_nothing() -> None:
    state = KeyValueState()
    lease = state.grant(1.0, now=0.0)
    assert state.revoke(lease) == ()
    assert state.revoke(lease) == ()
    with pytest.raises(StoreError, match="has ended"):
        state.keep_alive(lease, now=0.0)


def test_a_counter_keeps_within_64_bits() -> None:
    state = KeyValueState()
    assert state.add("n", -(2**63 - 1)).result == -(2**63 - 1)
    with pytest.raises(StoreError, match="64-bit"):
        state.add("n", -2)
    assert state.revision == 1


def test_no_lease_of_one_store_is_taken_for_one_of_its_successor() -> None:
    leases = [KeyValueState().grant(1.0, 0.0) for _ in range(2)]
    assert leases[0] != leases[1]
    assert all(0 < lease < 2**63 for lease in leases)
    with pytest.raises(StoreError, match="unknown or has ended"):
        KeyValueState().keep_alive(leases[0], 0.0)
