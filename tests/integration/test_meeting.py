"""Ranks that find each other: across namespaces, past strangers, and when some never come."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hosts import INTERFACE, Host, needs_hosts, plugged
from support.processes import soon

from torsh_runtime.backends.native import connections
from torsh_runtime.backends.native.connections import ANSWER, GREETING, Keys, Listeners, connect_all
from torsh_runtime.backends.native.host_info import TOKEN_BYTES, HostInfo, Terms
from torsh_runtime.backends.native.network import Network
from torsh_runtime.connections import multiplexer
from torsh_runtime.errors import CommError, CommTimeout, ConfigError, PeerLost
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore
from torsh_runtime.store.wire import proof

PROGRAM = Path(__file__).parents[1] / "support" / "meeting_rank.py"
SECRET = b"the job's secret"
GUARD = 60.0


# --- whole meetings ---


@pytest.fixture
def store() -> Iterator[HostedStore]:
    hosted = HostedStore.start("tcp:127.0.0.1:0", SECRET)
    yield hosted
    hosted.close()


def start(
    command: Sequence[str], rank: int, ranks: int, endpoint: str, timeout: float = 30.0, **env: str
) -> subprocess.Popen[str]:
    arguments = [str(rank), str(ranks), endpoint, str(timeout)]
    return subprocess.Popen(
        [*command, sys.executable, "-P", str(PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TORSH_SECRET": SECRET.hex(), **env},
    )


def accounts(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    try:
        outputs = [process.communicate(timeout=GUARD)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(output) for output in outputs]


def test_ranks_of_one_node_share_memory_and_no_links(store: HostedStore) -> None:
    for found in accounts([start([], rank, 3, store.endpoint) for rank in range(3)]):
        assert found["nodes"] == [[0, 1, 2]]
        assert found["links"] == {}
        assert found["bytes"] == 3 * 4096


@needs_hosts
@pytest.mark.netns
def test_pid_namespaces_of_one_machine_are_nodes_with_links(store: HostedStore) -> None:
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    commands = [[], [], apart, apart]
    ranks = [start(each, rank, 4, store.endpoint) for rank, each in enumerate(commands)]
    for rank, found in enumerate(accounts(ranks)):
        assert found["nodes"] == [[0, 1], [2], [3]]
        assert found["heard"]
        assert found["blocking"] == []
        own = next(node for node in found["nodes"] if rank in node)
        assert found["bytes"] == len(own) * 4096
        assert found["links"] == {str(peer): 3 for peer in range(4) if peer not in own}


@needs_hosts
@pytest.mark.netns
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_two_hosts(family: str) -> None:
    with plugged(2) as hosts:
        address = hosts[0].ipv4 if family == "ipv4" else f"[{hosts[0].ipv6}]"
        with served_in(hosts[0], f"tcp:{address}:0") as endpoint:
            ranks = [
                start(hosts[rank // 2].command, rank, 4, endpoint, TORSH_SOCKET_STREAMS="3")
                for rank in range(4)
            ]
            for rank, found in enumerate(accounts(ranks)):
                assert found["nodes"] == [[0, 1], [2, 3]]
                assert found["heard"]
                assert found["links"] == dict.fromkeys("23" if rank < 2 else "01", 4)


@needs_hosts
@pytest.mark.netns
def test_hosts_by_the_name_of_their_interface() -> None:
    with plugged(3) as hosts, served_in(hosts[0], f"tcp:{hosts[0].ipv4}:0") as endpoint:
        ranks = [
            start(host.command, rank, 3, endpoint, GLOO_SOCKET_IFNAME=f"eth7,{INTERFACE}")
            for rank, host in enumerate(hosts)
        ]
        for rank, found in enumerate(accounts(ranks)):
            assert found["links"] == {str(peer): 3 for peer in range(3) if peer != rank}


@needs_hosts
@pytest.mark.netns
def test_all_name_the_rank_that_stays_away() -> None:
    """Rank 2 has come, and then does nothing."""
    with plugged(3) as hosts, served_in(hosts[0], f"tcp:{hosts[0].ipv4}:0") as endpoint:
        stopped = start(hosts[2].command, 2, 3, endpoint, 30.0, MEETING_STOPS="yes")
        ranks = [start(hosts[rank].command, rank, 3, endpoint, 3.0) for rank in range(2)]
        try:
            found = accounts(ranks)
        finally:
            stopped.kill()
            stopped.communicate(timeout=GUARD)
    for each in found:
        assert each["error"] == "CommTimeout"
        assert "rank(s) 2" in each["text"]


@needs_hosts
@pytest.mark.netns
def test_a_rank_that_gives_up_tells_the_others_why() -> None:
    with plugged(2) as hosts, served_in(hosts[0], f"tcp:{hosts[0].ipv4}:0") as endpoint:
        first, second = accounts(
            [
                start(hosts[0].command, 0, 2, endpoint),
                start(hosts[1].command, 1, 2, endpoint, TORSH_SOCKET_IFNAME="none-such"),
            ]
        )
    assert second["error"] == "ConfigError"
    assert first["error"] == "CommError"
    assert "rank 1 gave up" in first["text"]
    assert "TORSH_SOCKET_IFNAME=none-such" in first["text"]


class served_in:  # noqa: N801
    """A store that a process serves elsewhere; its endpoint."""

    def __init__(self, host: Host, listen: str) -> None:
        script = (
            "import sys; from torsh_runtime.store.hosted import HostedStore\n"
            f"hosted = HostedStore.start({listen!r}, {SECRET!r})\n"
            "print(hosted.endpoint, flush=True); sys.stdin.read(); hosted.close()"
        )
        self._process = subprocess.Popen(
            [*host.command, sys.executable, "-P", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=GUARD)


def test_ranks_that_never_come_are_named(store: HostedStore) -> None:
    (found,) = accounts([start([], 1, 3, store.endpoint, timeout=0.5)])
    assert found["error"] == "CommTimeout"
    assert "rank(s) 0, 2" in found["text"]


def test_a_rank_that_is_killed_on_the_way_is_named(store: HostedStore) -> None:
    """It has come, and its node's first rank waits for it to fetch the segment."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with StoreClient.connect(store.endpoint, SECRET, GUARD) as client:
        place = replace(HostInfo.here("nobody", bytes(TOKEN_BYTES), Terms()), pid=child.pid)
        client.put("group/member/1", place.pack())
        first = start([], 0, 2, store.endpoint)
        soon(lambda: client.get("group/member/0") is not None, GUARD)
        child.kill()
        child.communicate(timeout=GUARD)
        (found,) = accounts([first])
    assert found["error"] == "PeerLost"
    assert "rank 1 was lost" in found["text"]


# --- links ---

KEYS = Keys(SECRET, "group")


class World:
    """Ranks as threads, each a node of its own."""

    def __init__(self, ranks: int) -> None:
        self._stack = ExitStack()
        network = Network(secret=SECRET, master="127.0.0.1")
        opened = [self._stack.enter_context(Listeners.opened(network)) for _ in range(ranks)]
        self.doors = [replace(each, contact=only_loopback(each.contact)) for each in opened]

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, rank: int) -> tuple[str, int]:
        return self.doors[rank].contact.addresses[0]

    def link(
        self,
        ranks: Sequence[int],
        timeout: float = GUARD,
        keys: Callable[[int], Keys] = lambda rank: KEYS,
    ) -> dict[int, Any]:
        """What connect_all gave or raised on each of these ranks, all of which may differ."""
        results: dict[int, Any] = {}

        def run(rank: int) -> None:
            contacts = {
                peer: doors.contact for peer, doors in enumerate(self.doors) if peer != rank
            }
            try:
                results[rank] = connect_all(
                    rank, self.doors[rank], contacts, keys(rank), timeout, lambda: None
                )
            except CommError as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD)
            assert not thread.is_alive()
        return results


def only_loopback(contact: connections.Endpoint) -> connections.Endpoint:
    return replace(contact, addresses=contact.addresses[-1:])


def check_links(results: dict[int, Any]) -> None:
    """Each lane leads where it should; closes them."""
    for rank, linked in results.items():
        assert not isinstance(linked, Exception), linked
        for peer, lanes in linked.items():
            for number, lane in enumerate(lanes):
                os.write(lane, bytes([rank, peer, number]))
    for rank, linked in results.items():
        for peer, lanes in linked.items():
            for number, lane in enumerate(lanes):
                os.set_blocking(lane, True)
                assert os.read(lane, 3) == bytes([peer, rank, number])
    for linked in results.values():
        for lane in sum(linked.values(), ()):
            os.close(lane)


@pytest.mark.parametrize("ranks", [2, 5])
def test_every_pair_gets_its_lanes(ranks: int) -> None:
    with World(ranks) as world:
        check_links(world.link(range(ranks)))


def greeted(address: tuple[str, int]) -> tuple[socket.socket, bytes]:
    """A connection, and the nonce that came."""
    sock = socket.create_connection(address, GUARD)
    greeting = b""
    while len(greeting) < GREETING.size:
        greeting += sock.recv(GREETING.size - len(greeting))
    return sock, GREETING.unpack(greeting)[1]


def is_cut_off(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def answer(
    nonce: bytes, key: bytes, *, rank: int = 1, lane: int = 0, role: Any = "client"
) -> bytes:
    own = bytes(32)
    return ANSWER.pack(rank, lane, own, proof(key, role, nonce, own))


def test_strangers_are_cut_off_and_hurt_nobody() -> None:
    with World(2) as world, ExitStack() as stack:
        lower, higher = ((rank, world.doors[rank].contact) for rank in range(2))
        stale = (0, replace(lower[1], token=bytes(32)))
        fewer = (0, replace(lower[1], streams=1))
        key = KEYS.lane(lower, higher, 0)
        hostile: list[Callable[[bytes], bytes]] = [
            lambda nonce: os.urandom(1 << 20),
            lambda nonce: os.urandom(ANSWER.size),
            lambda nonce: answer(nonce, key) + b"!",
            lambda nonce: answer(nonce, KEYS.lane(lower, higher, 1)),  # another lane's
            lambda nonce: answer(nonce, KEYS.lane(stale, higher, 0)),  # another meeting's
            lambda nonce: answer(nonce, KEYS.lane(fewer, higher, 0)),  # other terms
            lambda nonce: answer(nonce, Keys(SECRET, "other").lane(lower, higher, 0)),
            lambda nonce: answer(nonce, Keys(b"guess", "group").lane(lower, higher, 0)),
            lambda nonce: answer(nonce, key, rank=2),  # no such rank
            lambda nonce: answer(nonce, KEYS.lane(lower, lower, 0), rank=0),
            lambda nonce: answer(nonce, KEYS.lane(lower, higher, 9), lane=9),
            lambda nonce: answer(nonce, key, role="server"),
            lambda nonce: answer(bytes(32), key),  # a proof played back
        ]
        silent = [
            stack.enter_context(socket.create_connection(world.address(0))) for _ in range(100)
        ]
        results: dict[int, Any] = {}
        thread = threading.Thread(target=lambda: results.update(world.link([0])))
        thread.start()
        for speak in hostile:
            sock, nonce = greeted(world.address(0))
            with sock:
                try:
                    sock.sendall(speak(nonce))
                    assert is_cut_off(sock)
                except (BrokenPipeError, ConnectionResetError):
                    pass
        results |= world.link([1])
        thread.join(GUARD)
        check_links(results)
        assert len(silent) == 100


def test_a_silent_caller_is_cut_off_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplexer, "ADMISSION_SECONDS", 0.2)
    with World(2) as world:
        results: dict[int, Any] = {}
        thread = threading.Thread(target=lambda: results.update(world.link([0])))
        thread.start()
        sock, _ = greeted(world.address(0))
        with sock:
            assert is_cut_off(sock)
        results |= world.link([1])
        thread.join(GUARD)
        check_links(results)


def test_of_too_many_callers_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplexer, "MAX_STRANGERS", 4)
    with World(2) as world, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(world.address(0)))
        check_links(world.link([0, 1]))


def test_a_wrong_listener_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something listens at rank 0's address that does not know the secret."""
    monkeypatch.setattr(connections, "_PATIENCE", 0.5)
    with World(2) as world:
        results = world.link([0, 1], 3.0, lambda rank: KEYS if rank else Keys(b"guess", "group"))
    assert isinstance(results[0], CommTimeout)
    assert results[0].missing == (1,)
    assert isinstance(results[1], CommError)
    assert "TORSH_SECRET" in str(results[1])


def test_a_peer_that_nobody_can_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    with World(2) as world:
        for listener in world.doors[0].listeners:
            listener.close()
        (error,) = world.link([1]).values()
    assert type(error) is CommError
    assert "rank 0 cannot be reached at 127.0.0.1" in str(error)
    assert "TORSH_SOCKET_IFNAME" in str(error)


def test_those_that_do_not_come_are_named_at_the_deadline() -> None:
    with World(4) as world:
        (error,) = world.link([1], 0.5).values()
    assert error.missing == (0, 2, 3)


def test_a_peer_that_hangs_up_on_the_way_is_lost() -> None:
    with World(3) as world:
        results: dict[int, Any] = {}
        thread = threading.Thread(target=lambda: results.update(world.link([0])))
        thread.start()
        contacts = [(rank, world.doors[rank].contact) for rank in range(2)]
        key = KEYS.lane(contacts[0], contacts[1], 0)
        sock, nonce = greeted(world.address(0))
        with sock:
            sock.sendall(answer(nonce, key))
            assert len(sock.recv(32)) == 32
        thread.join(GUARD)
    assert isinstance(results[0], PeerLost)
    assert results[0].rank == 1


def test_what_looking_around_finds_ends_the_wait() -> None:
    def look_around() -> None:
        raise ConfigError("found")

    with World(2) as world:
        contacts = {1: world.doors[1].contact}
        with pytest.raises(ConfigError, match="found"):
            connect_all(0, world.doors[0], contacts, KEYS, GUARD, look_around)
