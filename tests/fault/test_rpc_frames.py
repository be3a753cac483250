"""A worker's port, spoken to by hand: strangers; torn, replayed and forged frames of calls."""

from __future__ import annotations

import pickle
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.rpc_worlds import PATIENCE, double, error_of, note, run_workers, seen, wait_for

import torsh_runtime.rpc as rpc
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.errors import PeerLost
from torsh_runtime.rpc.connector import ANSWER, GREETING, Keys
from torsh_runtime.rpc.current import current_agent

HEADER = struct.Struct("<IB3xIIQQQd16s")
"""Magic, kind, buffers, padding, call, number, bytes, seconds left, seal."""
MAGIC, REQUEST, RESULT, TAKEN, GOODBYE = 0x3152534D, 1, 2, 4, 5
CALL, NUMBER, LEFT, SEAL = 16, 24, 40, 48
"""Where these lie in a header."""


@contextmanager
def opened() -> Iterator[tuple[socket.socket, Keys]]:
    """A connection to worker 1 that has proved itself as one of this worker's."""
    agent = current_agent()
    found = agent._lobby.connect(agent.directory.find("worker1"), True, time.monotonic() + PATIENCE)
    found.sock.settimeout(PATIENCE)
    with closing(found.sock):
        yield found.sock, found.keys


def run_attack(body: Callable[[int], Any]) -> list[Any]:
    """body(0) against a worker 1 that does not leave before it is over: connections that are ended
    by hand would tell it that worker 0 has gone."""
    with tempfile.TemporaryDirectory() as folder:
        over = Path(folder) / "over"

        def be_worker(rank: int) -> Any:
            if rank:
                return wait_for(over)
            try:
                return body(rank)
            finally:
                over.touch()

        return run_workers(2, be_worker)


def frames(keys: Keys, *values: Any) -> list[bytes]:
    """Calls of note() with each of these, as a worker with these keys would send them."""
    hub = _native.Hub(1, 1 << 20, PATIENCE)
    ours, theirs = socket.socketpair()
    connection = hub.add(ours.detach(), 0, *keys)
    found = []
    with theirs:
        for value in values:
            pickled = pickle.dumps((note, (value,), {}), 5)
            assert hub.call(connection, pickled, [], time.monotonic() + PATIENCE) is not None
            found.append(received(theirs, HEADER.size + len(pickled)))
    hub.close(time.monotonic())
    return found


def received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, data
        data += part
    return data


def answer(sock: socket.socket, frame: bytes) -> int:
    """What kind of frame the worker answers this one with."""
    sock.sendall(frame)
    _, kind, _, _, _, _, size, _, _ = HEADER.unpack(received(sock, HEADER.size))
    received(sock, size)
    return int(kind)


def is_ended(sock: socket.socket) -> bool:
    """Whether the worker hangs up, whatever it says before."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        return True
    return True


def flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


def header(kind: int, call: int = 1, number: int = 0, size: int = 0, buffers: int = 0) -> bytes:
    """Without a seal."""
    return HEADER.pack(MAGIC, kind, buffers, 0, call, number, size, 1.0, bytes(16))


FORGED: dict[str, Callable[[list[bytes]], bytes]] = {
    "first half of a header": lambda sent: sent[0][:30],
    "half of a pickle": lambda sent: sent[0][:-3],
    "noise": lambda sent: b"GET / HTTP/1.1\r\n" * 8,
    "another magic number": lambda sent: flipped(sent[0], 0),
    "an unknown kind": lambda sent: header(9),
    "another call": lambda sent: flipped(sent[0], CALL),
    "another number": lambda sent: flipped(sent[0], NUMBER),
    "another deadline": lambda sent: flipped(sent[0], LEFT + 6),
    "another seal": lambda sent: flipped(sent[0], SEAL),
    "another pickle": lambda sent: flipped(sent[0], len(sent[0]) - 4),
    "no seal": lambda sent: sent[0][:SEAL] + bytes(16) + sent[0][HEADER.size :],
    "out of turn": lambda sent: sent[1],
    "more than there is memory for": lambda sent: header(REQUEST, size=1 << 45),
    "a million buffers": lambda sent: header(REQUEST, size=8, buffers=(1 << 20) + 1),
    "huge buffers": lambda sent: (
        header(REQUEST, size=8, buffers=1) + struct.pack("<QQ", 1 << 62, 0)
    ),
    "an answer that is forged": lambda sent: header(RESULT, size=4) + b"data",
}


def test_what_is_forged_or_torn_is_never_carried_out_and_ends_its_connection_alone() -> None:
    def body(rank: int) -> Any:
        if rank:
            return None
        ended = {}
        for name, forge in FORGED.items():
            with opened() as (sock, keys):
                sock.sendall(forge(frames(keys, name, name)))
                sock.shutdown(socket.SHUT_WR)
                ended[name] = is_ended(sock)
            assert rpc.rpc_sync("worker1", double, args=(21,)) == 42, name
        return [name for name, is_over in ended.items() if not is_over], rpc.rpc_sync(
            "worker1", seen
        )

    assert run_attack(body) == [([], []), None]


def test_a_frame_is_carried_out_once_and_on_its_own_connection_only() -> None:
    def body(rank: int) -> Any:
        if rank:
            return None
        with opened() as (sock, keys):
            first, second = frames(keys, "first", "second")
            kinds = [answer(sock, frame) for frame in (first, second)]
            sock.sendall(second)
            assert is_ended(sock)
        with opened() as (sock, _):
            sock.sendall(first)
            assert is_ended(sock)
        right = rpc.rpc_sync("worker1", double, args=(21,))
        return kinds, right, rpc.rpc_sync("worker1", seen)

    found = run_attack(body)[0]
    assert found == ([RESULT, RESULT], 42, ["first", "second"])


def test_answers_to_nothing_and_ends_that_are_announced_disturb_nobody() -> None:
    def body(rank: int) -> Any:
        if rank:
            return None
        with opened() as (sock, _):
            sock.sendall(header(TAKEN))
            sock.sendall(header(GOODBYE))
            sock.shutdown(socket.SHUT_WR)
            assert is_ended(sock)
        return rpc.rpc_sync("worker1", double, args=(21,))

    assert run_attack(body)[0] == 42


def test_a_caller_whose_answer_is_torn_is_told_and_may_call_again(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def answer_badly(data: bytes) -> None:
        with opened() as (sock, _):
            ready.touch()
            magic, kind, *_ = HEADER.unpack(received(sock, HEADER.size))
            assert (magic, kind) == (MAGIC, REQUEST)
            sock.sendall(data)

    def body(rank: int) -> Any:
        if rank == 0:
            answer_badly(header(RESULT, size=100)[:40])
            return None
        wait_for(ready)
        error = error_of(lambda: rpc.rpc_sync("worker0", double, args=(1,)))
        return isinstance(error, PeerLost), rpc.rpc_sync("worker0", double, args=(2,))

    assert run_workers(2, body)[1] == (True, 4)


@pytest.mark.parametrize(
    "saying", [b"", b"noise" * 40, bytes(ANSWER.size)], ids=["nothing", "noise", "zeros"]
)
def test_strangers_hold_up_nobody(saying: bytes) -> None:
    def body(rank: int) -> Any:
        if rank:
            return None
        address = current_agent().directory.find("worker1").near[0]
        strangers = []
        for _ in range(20):
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stranger.settimeout(PATIENCE)
            stranger.connect(address)
            strangers.append(stranger)
            received(stranger, GREETING.size)
            stranger.sendall(saying)
        with opened():
            right = rpc.rpc_sync("worker1", double, args=(21,))
        refused = [bool(saying) and is_ended(stranger) for stranger in strangers]
        for stranger in strangers:
            stranger.close()
        return right, set(refused)

    assert run_attack(body)[0] == (42, {bool(saying)})
