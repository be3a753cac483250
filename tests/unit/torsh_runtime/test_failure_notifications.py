"""What ranks tell each other through the store."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator

import msgpack
import pytest
from support.worlds import silent

from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.library import failure_notifications
from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureCause,
    FailureNotifications,
)
from torsh_runtime.errors import CommAborted, CommError, CommTimeout, PeerLost, StoreTimeout
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore


@pytest.fixture
def hosted() -> Iterator[HostedStore]:
    hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")
    yield hosted
    hosted.close()


@pytest.fixture
def store(hosted: HostedStore) -> Iterator[StoreClient]:
    with StoreClient.connect(hosted.endpoint, b"", 30) as client:
        yield client


@pytest.fixture
def call() -> Call:
    return Call("all_reduce", 3)


@pytest.fixture
def pair(store: StoreClient) -> tuple[FailureNotifications, FailureNotifications]:
    first, second = (
        FailureNotifications(store, 0, 2, BackendType.GLOO),
        FailureNotifications(store, 1, 2, BackendType.GLOO),
    )
    with pytest.raises(CommTimeout):
        first.meet(0, b"first")
    assert second.meet(5, b"second") == [b"first", b"second"]
    assert first.meet(5, b"first") == [b"first", b"second"]
    return first, second


def test_those_who_did_not_come_are_named(store: StoreClient) -> None:
    with pytest.raises(CommTimeout) as caught:
        FailureNotifications(store, 1, 4, BackendType.GLOO).meet(0.1)
    assert caught.value.missing == (0, 2, 3)


@pytest.mark.parametrize(
    "words", [b"", b"\xc1", b"\x91" * 2000, b"\x01", b"\x80", b"\x81\xa3pid\xa1x"]
)
def test_what_makes_no_sense_names_the_rank_and_ends_nothing_else(
    store: StoreClient, words: bytes
) -> None:
    store.put("member/1", words)
    with pytest.raises(CommError, match="rank 1 says of itself makes no sense"):
        FailureNotifications(store, 0, 2, BackendType.GLOO).meet(5, b"first")


@pytest.mark.parametrize("words", [b"", b"\xc1", b"\x01", msgpack.packb(["os", ["x"]])])
def test_an_end_that_makes_no_sense_is_an_end(
    pair: tuple[FailureNotifications, FailureNotifications],
    store: StoreClient,
    call: Call,
    words: bytes,
) -> None:
    store.put("note/end", words)
    found = pair[0].look(call)
    assert found is not None
    assert "its words make no sense here" in str(found.error())


def test_the_first_cause_stands(
    pair: tuple[FailureNotifications, FailureNotifications], call: Call
) -> None:
    first, second = pair
    cause = FailureCause("CommTimeout", ("barrier", 3, 1.5, (0,)))
    assert first.look(call) is None
    assert second.report(cause) == cause
    assert first.report(FailureCause("CommAborted", ("later",))).kind == "CommTimeout"
    found = first.look(call)
    assert found is not None
    error = found.error()
    assert isinstance(error, CommTimeout)
    assert (error.op, error.sequence, error.missing) == ("barrier", 3, (0,))


def test_who_waits_elsewhere_is_missing(
    pair: tuple[FailureNotifications, FailureNotifications], call: Call
) -> None:
    first, second = pair
    assert first.missing(call) == [1]
    second.look(Call("barrier", 2))
    assert first.missing(call) == [1]
    second.look(call)
    assert first.missing(call) == []
    assert first.missing(Call("recv", 3, 1, True)) == [1]


def test_who_left_is_lost_to_later_operations_only(
    pair: tuple[FailureNotifications, FailureNotifications], call: Call
) -> None:
    first, second = pair
    second.leave(3)
    assert first.look(call) is None
    lost = first.look(Call("barrier", 4))
    assert lost is not None
    assert isinstance(lost.error(), PeerLost)
    assert lost.arguments[:3] == (1, "barrier", 4)


def test_messages_of_who_left_may_still_be_under_way(
    pair: tuple[FailureNotifications, FailureNotifications],
) -> None:
    first, second = pair
    second.leave(3)
    call = Call("recv", 3, 1, True)
    assert first.look(call) is None
    lost = first.look(call)
    assert lost is not None
    assert lost.arguments[0] == 1


def test_looks_of_two_messages_are_not_two_in_a_row(
    pair: tuple[FailureNotifications, FailureNotifications],
) -> None:
    first, second = pair
    second.leave(3)
    for _ in range(2):
        assert first.look(Call("recv", 3, 1, True)) is None


def test_a_process_that_ended_is_lost(store: StoreClient, call: Call) -> None:
    program = (
        "import sys; from torsh_runtime.backends.library.failure_notifications import "
        "FailureNotifications; "
        "from torsh_runtime.store.client import StoreClient; "
        "from torsh_runtime.backends.base import BackendType; "
        "store = StoreClient.connect(sys.argv[1], b'', 30); "
        "FailureNotifications(store, 1, 2, BackendType.GLOO).meet(30)"
    )
    command = [sys.executable, "-P", "-c", program, store.endpoint]
    with subprocess.Popen(command, env=dict(os.environ)) as peer:
        news = FailureNotifications(store, 0, 2, BackendType.GLOO)
        news.meet(30)
        assert peer.wait(30) == 0
    assert news.look(call) is None
    lost = news.look(call)
    assert lost is not None
    assert "process has ended" in str(lost.error())


def test_without_a_store_nothing_is_known(
    pair: tuple[FailureNotifications, FailureNotifications], store: StoreClient, call: Call
) -> None:
    store.close()
    first, _ = pair
    cause = FailureCause("CommAborted", ("why",))
    assert first.look(call) is None
    assert first.report(cause) == cause
    assert isinstance(cause.error(), CommAborted)
    first.leave(4)


def test_who_has_not_connected_is_named(
    pair: tuple[FailureNotifications, FailureNotifications],
) -> None:
    first, second = pair
    with pytest.raises(CommTimeout) as caught:
        first.all_connected(0.05)
    assert caught.value.missing == (1,)
    second.all_connected(30)


def test_a_rank_that_has_called_an_operation_but_not_come_to_it_is_missing(
    pair: tuple[FailureNotifications, FailureNotifications], call: Call
) -> None:
    first, second = pair
    assert first.missing(call) == [1]
    assert first.called(call) == []
    second.look(Call("all_reduce", 3, has_started=False))
    assert first.missing(call) == [1]
    assert first.called(call) == [1]
    second.look(call)
    assert first.missing(call) == []
    assert first.called(call) == []


def test_a_message_that_a_gpu_has_not_come_to_follows_the_collective_before_it(
    pair: tuple[FailureNotifications, FailureNotifications], call: Call
) -> None:
    first, second = pair
    message = Call("send", 3, 0, True, has_started=False)
    second.look(message)
    assert first.missing(call) == []
    assert first.called(message) == []


def test_a_silent_store_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, store: StoreClient, hosted: HostedStore, call: Call
) -> None:
    monkeypatch.setattr(failure_notifications, "_PATIENCE", 0.5)
    news = FailureNotifications(store, 0, 2, BackendType.GLOO)
    began = time.monotonic()
    with silent(hosted):
        for _ in range(20):
            assert news.look(call) is None
            assert news.is_silent
        assert news.missing(call) == []
    assert time.monotonic() - began < 5


def test_a_silent_store_delays_the_deadline_of_meeting_little(
    monkeypatch: pytest.MonkeyPatch, store: StoreClient, hosted: HostedStore
) -> None:
    monkeypatch.setattr(failure_notifications, "_PATIENCE", 0.5)
    began = time.monotonic()
    with silent(hosted), pytest.raises(StoreTimeout, match="did not answer within 1 s"):
        FailureNotifications(store, 0, 2, BackendType.GLOO).meet(1.0)
    assert time.monotonic() - began < 20
