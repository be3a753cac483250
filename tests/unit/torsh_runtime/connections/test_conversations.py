"""Conversations with many callers at once: who of them has to go, and when."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from torsh_runtime.connections import multiplexer as module
from torsh_runtime.connections.acceptor import CpuBudget
from torsh_runtime.connections.multiplexer import (
    ConnectionMultiplexer,
    ProtocolCoroutine,
    Refused,
    receive,
    send,
)

GUARD = 60.0


def echo(sock: socket.socket) -> ProtocolCoroutine:
    said = yield from receive(sock, 2)
    if said == b"no":
        raise Refused("no")
    yield from send(sock, said)
    return said


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


class Callers:
    """Some that are connected, one after the other, from hosts of their choice."""

    def __init__(
        self, conversations: ConnectionMultiplexer, listener: socket.socket, stack: ExitStack
    ) -> None:
        self._conversations, self._address, self._stack = (
            conversations,
            listener.getsockname(),
            stack,
        )
        conversations.listen(listener, echo)

    def come(self) -> socket.socket:
        sock = self._stack.enter_context(socket.create_connection(self._address, GUARD))
        assert not [*self._conversations.turn(GUARD)]
        return sock


def is_cut_off(sock: socket.socket) -> bool:
    """Whether the other side has hung up; it says nothing of itself."""
    return bool(select.select([sock], [], [], 0)[0])


def test_a_conversation_ends_with_its_result_or_why_not(listener: socket.socket) -> None:
    with ConnectionMultiplexer() as conversations, ExitStack() as stack:
        callers = Callers(conversations, listener, stack)
        good, bad, gone = (callers.come() for _ in range(3))
        good.sendall(b"ok")
        (outcome,) = conversations.turn(GUARD)
        assert (outcome.result, good.recv(10)) == (b"ok", b"ok")
        outcome.sock.close()
        bad.sendall(b"no")
        (outcome,) = conversations.turn(GUARD)
        assert isinstance(outcome.error, Refused)
        gone.close()
        (outcome,) = conversations.turn(GUARD)
        assert isinstance(outcome.error, EOFError)
        assert conversations.num_callers == 0


def test_who_is_too_slow_is_cut_off(listener: socket.socket) -> None:
    with ConnectionMultiplexer(patience=0.01) as conversations, ExitStack() as stack:
        caller = Callers(conversations, listener, stack).come()
        assert conversations.next_deadline < time.monotonic() + 1.0
        while not is_cut_off(caller):
            outcomes = [*conversations.turn(GUARD)]
        assert isinstance(outcomes[0].error, TimeoutError)
        assert conversations.next_deadline == float("inf")


@pytest.mark.parametrize(
    ("hosts", "remaining"),
    [
        (["", "", ""], [1, 2]),
        (["", "a", "b", "b"], [0, 1, 3]),
        (["a", "b", "c"], [1, 2]),
        (["b", "a", "a"], [0, 2]),
        (["", "a", "", "a"], [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_of_too_many_the_oldest_of_the_busiest_host_goes(
    listener: socket.socket,
    hosts: list[str],
    remaining: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This host's ("") and those of others do not take each other's places."""
    coming = iter(hosts)
    monkeypatch.setattr(module, "foreign", lambda client, own: next(coming))
    with ConnectionMultiplexer(most_callers=2) as conversations, ExitStack() as stack:
        callers = Callers(conversations, listener, stack)
        socks = [callers.come() for _ in hosts]
        assert [n for n, sock in enumerate(socks) if not is_cut_off(sock)] == remaining
        assert conversations.num_callers == len(remaining)


def test_a_turn_hears_no_more_than_it_is_to(listener: socket.socket) -> None:
    with ConnectionMultiplexer() as conversations, ExitStack() as stack:
        callers = Callers(conversations, listener, stack)
        socks = [callers.come() for _ in range(10)]
        for sock in socks:
            sock.sendall(b"ok")
        heard = []
        while len(heard) < 10:
            outcomes = [*conversations.turn(GUARD, 3)]
            assert len(outcomes) <= 3
            heard += outcomes
        for outcome in heard:
            outcome.sock.close()


@pytest.mark.parametrize(
    ("client", "own", "foreign"),
    [
        ("127.0.0.9", "127.0.0.1", ""),
        ("::ffff:127.0.0.1", "::", ""),
        ("10.0.0.1", "10.0.0.1", ""),
        ("10.0.0.2", "10.0.0.1", "10.0.0.2"),
    ],
)
def test_who_is_of_this_host(client: str, own: str, foreign: str) -> None:
    assert module.foreign(client, own) == foreign


def test_a_budget_of_the_cpu_is_a_share_that_can_be_saved_up() -> None:
    pause = partial(CpuBudget(share=0.25, saved=4.0).pause)
    assert pause(0.5, now=100.0) == 0.0  # one second of work is saved up
    assert pause(0.5, now=100.0) == 0.0
    assert pause(0.1, now=100.0) == pytest.approx(0.4)
    assert pause(0.1, now=100.4) == pytest.approx(0.4)  # from then on a quarter
    assert pause(1.0, now=200.0) == 0.0


@pytest.mark.parametrize("named", [False, True])
def test_a_unix_socket_that_has_a_name_may_call(named: bool) -> None:
    name = b"\0torsh-test-caller-%d" % os.getpid() if named else b""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        listener.bind(b"\0torsh-test-listener-%d" % os.getpid())
        listener.listen()
        if name:
            caller.bind(name)
        caller.connect(listener.getsockname())
        with ConnectionMultiplexer() as conversations:
            conversations.listen(listener, echo)
            assert not [*conversations.turn(GUARD)]
            assert conversations.num_callers == 1
