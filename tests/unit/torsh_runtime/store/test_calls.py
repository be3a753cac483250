"""The clients' core: what a call sends, how long it waits, and what its answer or failure means."""

from __future__ import annotations

import math

import pytest

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store import wire
from torsh_runtime.store.base import Compare, Delete, Entry, Event, Listing, Put, Write
from torsh_runtime.store.calls import Calls

ENTRY = ["job/a", b"1", 7, 0]
CALLS = Calls("unix:@here", 5.0).within("job/")


def result(body: object) -> wire.Reply:
    return wire.Reply(1, wire.RESULT, body)


def test_a_scope_names_what_is_sent_and_is_not_seen_in_what_comes() -> None:
    get = CALLS.get("a")
    assert get.request.args == ("job/a",)
    assert get.result(result(ENTRY)) == Entry("a", b"1", 7, 0)
    assert get.result(result(None)) is None
    listed = CALLS.list("").result(result([[ENTRY], 9]))
    assert listed == Listing((Entry("a", b"1", 7, 0),), 9)
    assert CALLS.wait(["a"], 1.0).result(result([ENTRY])) == {"a": Entry("a", b"1", 7, 0)}
    event = wire.Reply(1, wire.EVENT, ["put", "job/a", b"1", 7, 0])
    assert CALLS.watch("", 3).result(event) == Event("put", "a", b"1", 7, 0)
    writes: list[Write] = [Put("b", b"2"), Delete("c")]
    sent = CALLS.transact([Compare("a", 7)], writes).request.args
    assert sent == ([Compare("job/a", 7)], [Put("job/b", b"2"), Delete("job/c")])


def test_without_a_prefix_results_are_handed_on_as_they_are() -> None:
    calls = Calls("unix:@here", 5.0)
    listing = Listing((Entry("a", b"1", 7, 0),), 9)
    assert calls.scope.listing(listing) is listing
    assert calls.scope.entry(listing.items[0]) is listing.items[0]


def test_only_waiting_for_keys_may_take_longer() -> None:
    assert CALLS.get("a").seconds == 5.0
    assert CALLS.get("a").is_prompt
    assert CALLS.wait(["a"], 3.0).seconds == 8.0
    assert not CALLS.wait(["a"], 3.0).is_prompt


@pytest.mark.parametrize("timeout", [-1.0, math.inf, math.nan])
def test_no_wait_is_endless(timeout: float) -> None:
    with pytest.raises(StoreError, match="finite"):
        CALLS.wait(["a"], timeout)


def test_a_key_has_a_name() -> None:
    for call in (CALLS.get, CALLS.delete, lambda key: CALLS.transact([Compare(key, 0)], [])):
        with pytest.raises(StoreError, match="non-empty"):
            call("")


@pytest.mark.parametrize("status", [wire.FAILURE, wire.EVENT])
def test_a_refusal_is_raised_as_it_came(status: int) -> None:
    with pytest.raises(StoreTimeout, match=r"^late$"):
        CALLS.get("a").result(wire.Reply(1, status, ["timeout", "late"]))
    with pytest.raises(StoreError, match=r"^gone$"):
        CALLS.watch("", 0).result(wire.Reply(1, wire.RESULT, ["store", "gone"]))


def test_errors_say_which_call_failed_and_how() -> None:
    many = CALLS.wait(["a", "b", "c", "d", "e"], 1.0)
    assert many.label == "wait('job/a', 'job/b', 'job/c', 'job/d', …) at unix:@here"
    for error, kind, text in (
        (TimeoutError(), StoreTimeout, "did not answer within 5 s"),
        (ConnectionResetError("reset"), StoreError, r"connection failed \(reset\)"),
        (EOFError("it hung up"), StoreError, r"connection failed \(it hung up\)"),
        (StoreTimeout("missing"), StoreTimeout, "missing"),
        (StoreError("no lease"), StoreError, "no lease"),
    ):
        failure = CALLS.get("a").failure(error)
        assert type(failure) is kind
        assert str(failure).startswith("get('job/a') at unix:@here: ")
        with pytest.raises(kind, match=text):
            raise failure
