"""StoreServer and its clients under bad bytes, bad peers and lost connections."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.raw_clients import RawClient

from torsh_runtime.errors import ConfigError, StoreError, StoreTimeout
from torsh_runtime.store import wire
from torsh_runtime.store.base import Compare, Delete, Put, Store
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.server import StoreServer

GUARD = 60.0
SECRET = b"the job's secret"
ROOT = str(Path(__file__).parents[2])


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + GUARD
    while not holds():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.005)


class Served:
    """A memory store behind a server, and raw sockets to it."""

    def __init__(self, loop: Any, store: MemoryStore | None = None, **options: Any) -> None:
        self.loop = loop
        self.store = store or MemoryStore()
        self.refusals: list[str] = []
        self.server = StoreServer(self.store, SECRET, on_refused=self.refusals.append, **options)
        self.endpoint: str = loop.run(self.server.start(f"unix:@torsh-{uuid.uuid4().hex}"))
        self._opened: list[Any] = []

    def raw(self) -> RawClient:
        raw = RawClient(self.endpoint, SECRET)
        self._opened.append(raw)
        return raw

    def authenticated(self) -> RawClient:
        raw = self.raw()
        raw.authenticate()
        return raw

    def client(self, **options: Any) -> StoreClient:
        client = StoreClient.connect(self.endpoint, SECRET, GUARD, **options)
        self._opened.append(client)
        return client

    def works(self) -> bool:
        with StoreClient.connect(self.endpoint, SECRET, GUARD) as client:
            return client.put("works", b"") > 0

    def num_waiting(self) -> int:
        return len(self.store._arrivals) + len(self.store._watchers)

    def num_strangers(self) -> int:
        assert self.server._acceptor
        return self.server._acceptor._conversations.num_callers

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        self.loop.run(self.server.close())
        self.loop.run(self.store.close())


@pytest.fixture
def serve(loop_thread: Any) -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def start(*store: MemoryStore, **options: Any) -> Served:
        running.append(Served(loop_thread, *store, **options))
        return running[-1]

    yield start
    for served in running:
        served.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


# --- who is let in ---


def test_a_wrong_secret_is_refused_at_once(served: Served) -> None:
    with pytest.raises(StoreError, match="secret") as raised:
        StoreClient.connect(served.endpoint, b"another", GUARD)
    assert not isinstance(raised.value, StoreTimeout)
    assert served.endpoint in str(raised.value)
    until(lambda: len(served.refusals) == 1)
    assert served.works()


def test_a_server_without_the_secret_is_refused(no_leaks: None) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener, ThreadPoolExecutor(1) as t:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def impostor() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(wire.encode_greeting(bytes(wire.NONCE_BYTES)))
                assert sock.recv(1 << 16)
                sock.sendall(wire.encode([True, bytes(32)]))

        done = t.submit(impostor)
        with pytest.raises(StoreError, match="does not know this job's secret"):
            StoreClient.connect(f"tcp:127.0.0.1:{listener.getsockname()[1]}", SECRET, GUARD)
        done.result(GUARD)


def test_a_recorded_proof_cannot_be_played_back(served: Served) -> None:
    first, second = served.raw(), served.raw()
    recorded = first.session.answer(first.receive())
    second.receive()
    second.sendall(recorded)
    with pytest.raises(StoreError, match="secret"):
        wire.decode_verdict(second.receive())


def test_an_empty_secret_lets_clients_in(no_leaks: None) -> None:
    with (
        HostedStore.start("tcp:127.0.0.1:0", b"") as hosted,
        StoreClient.connect(hosted.endpoint, b"", GUARD) as client,
    ):
        assert client.put("a", b"1") == 1


def test_requests_before_the_handshake_are_not_looked_at(served: Served) -> None:
    sock = served.raw()
    sock.receive()
    sock.sendall(wire.encode_request(wire.Request(1, "put", ("a", b"1", 0))))
    assert sock.is_cut_off()
    assert served.loop.run(served.store.get("a")) is None


def test_of_too_many_strangers_the_oldest_goes(serve: Callable[..., Served]) -> None:
    served = serve(max_strangers=4)
    friend = served.client()
    strangers = [served.raw() for _ in range(6)]
    for gone in strangers[:2]:
        gone.receive()  # the greeting
        assert gone.receive() == b""
    assert served.num_strangers() == 4
    assert friend.put("works", b"") > 0
    assert served.works()  # who comes later finds a place, too


class Noting(MemoryStore):
    """How many strangers there are when something is put."""

    served: Served
    found = -1

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        self.found = self.served.num_strangers()
        return await super().put(key, value, lease)


def test_who_has_proved_itself_is_heard_before_a_crowd(serve: Callable[..., Served]) -> None:
    """All of them wait when the server looks: most of the strangers then wait for the friend."""
    store = Noting()
    served = store.served = serve(store)
    friend = served.authenticated()
    stands_still = threading.Event()
    served.loop.loop.call_soon_threadsafe(stands_still.wait, GUARD)
    crowd = [served.raw() for _ in range(400)]
    friend.send(wire.encode_request(wire.Request(1, "put", ("a", b"", 0))))
    stands_still.set()
    assert wire.decode_reply(friend.receive()).status == wire.RESULT
    until(lambda: served.num_strangers() == len(crowd))
    assert 0 <= store.found < 100


def test_a_client_that_says_nothing_is_cut_off(serve: Callable[..., Served]) -> None:
    served = serve(handshake_timeout=0.05)
    sock = served.raw()
    sock.receive()
    assert sock.receive() == b""


# --- bad bytes ---


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        (wire.MAX_HANDSHAKE_FRAME + 1).to_bytes(4, "big"),
        b"\0\0\0\0",
        b"\0\0\0\x01\xc1",
        b"\0\0\0\x05\xdd\xff\xff\xff\xff",
        wire.encode([]),
        wire.encode([b"", b""]),
        wire.encode([bytes(32), "text"]),
        wire.encode(b"x" * 4000),
    ],
)
def test_junk_in_the_handshake_ends_only_its_connection(served: Served, junk: bytes) -> None:
    other = served.client()
    sock = served.raw()
    sock.receive()
    sock.sendall(junk)
    assert sock.is_cut_off()
    assert other.put("a", b"1") == 1


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xff\xff\xff",
        (wire.MAX_FRAME + 1).to_bytes(4, "big"),
        b"\0\0\0\x02\xff\xff",
        wire.encode([1, "close", []]),
        wire.encode([1, "__init__", []]),
        wire.encode([1, "get", []]),
        wire.encode([1, "get", [1]]),
        wire.encode([True, "get", ["a"]]),
        wire.encode([1, "put", ["a", "text", 0]]),
        wire.encode([1, "wait", [["a", 1], 1.0]]),
        wire.encode([1, "transact", [[], [["increment", "a"]]]]),
        wire.encode([1, "transact", [[["a"]], []]]),
        wire.encode("nonsense"),
    ],
)
def test_junk_after_the_handshake_ends_only_its_connection(served: Served, junk: bytes) -> None:
    other = served.client()
    sock = served.authenticated()
    sock.send(junk)
    assert sock.receive() == b""
    assert other.put("a", b"1") == 1
    until(lambda: len(served.refusals) == 1)


def test_random_bytes_hurt_nobody(served: Served) -> None:
    for size in range(1, 200, 7):
        sock = served.authenticated() if size % 2 else served.raw()
        sock.sendall(os.urandom(size))
        sock.close()
    assert served.works()


def test_a_message_that_is_too_large_is_refused_by_name(served: Served) -> None:
    client = served.client()
    with pytest.raises(StoreError, match=r"put\('big'\).*limit"):
        client.put("big", bytes(wire.MAX_FRAME))
    for number in range(5):
        client.put(f"part/{number}", bytes(16 << 20))
    with pytest.raises(StoreError, match="narrower prefix"):
        client.list("part/")
    assert len(client.list("part/1").items) == 1


# --- many requests at once ---


def test_one_connection_carries_many_requests_at_once(served: Served) -> None:
    sock = served.authenticated()
    sock.send(wire.encode_request(wire.Request(7, "wait", (["late"], GUARD))))
    sock.send(wire.encode_request(wire.Request(8, "put", ("early", b"", 0))))
    assert wire.decode_reply(sock.receive()) == wire.Reply(8, wire.RESULT, 1)
    sock.send(wire.encode_request(wire.Request(9, "put", ("late", b"", 0))))
    assert {wire.decode_reply(sock.receive()).id for _ in range(2)} == {7, 9}


def test_too_many_requests_at_once_are_refused(served: Served) -> None:
    sock = served.authenticated()
    for number in range(1025):
        sock.send(wire.encode_request(wire.Request(number, "wait", (["never"], GUARD))))
    reply = wire.decode_reply(sock.receive())
    assert (reply.id, reply.status) == (1024, wire.FAILURE)
    sock.close()
    until(lambda: served.num_waiting() == 0)


# --- lost and slow clients ---


def test_a_lost_client_takes_its_waits_and_watches_along(served: Served) -> None:
    sock = served.authenticated()
    sock.send(wire.encode_request(wire.Request(1, "wait", (["never"], GUARD))))
    sock.send(wire.encode_request(wire.Request(2, "watch", ("w/", 0))))
    until(lambda: served.num_waiting() == 2)
    sock.close()
    until(lambda: served.num_waiting() == 0)


WAIT_FOR_EVER = """
import sys
from torsh_runtime.store.client import StoreClient
StoreClient.connect(sys.argv[1], sys.argv[2].encode(), 60).wait(["never"], 60)
"""


def test_a_killed_client_takes_its_wait_along(served: Served) -> None:
    command = [sys.executable, "-c", WAIT_FOR_EVER, served.endpoint, SECRET.decode()]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ROOT}) as process:
        try:
            until(lambda: served.num_waiting() == 1)
        finally:
            process.kill()
    until(lambda: served.num_waiting() == 0)


def test_an_interrupt_ends_a_blocking_wait(served: Served) -> None:
    command = [sys.executable, "-c", WAIT_FOR_EVER, served.endpoint, SECRET.decode()]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": ROOT}, stderr=subprocess.PIPE
    ) as process:
        until(lambda: served.num_waiting() == 1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=GUARD)
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    until(lambda: served.num_waiting() == 0)


def test_the_client_stays_light() -> None:
    heavy = "{'asyncio', 'dataclasses', 'logging', 'numpy', 'ssl'} & set(sys.modules)"
    code = f"import torsh_runtime.store.client, sys; print({heavy} or 'light')"
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, check=True
    )
    assert found.stdout == b"light\n"


def test_a_slow_reader_is_cut_off_and_delays_nobody(serve: Callable[..., Served]) -> None:
    served = serve(send_timeout=0.2)
    client = served.client()
    client.put("big", bytes(4 << 20))
    slow = served.authenticated()
    for number in range(100):
        slow.send(wire.encode_request(wire.Request(number, "get", ("big",))))
    assert client.get("big") is not None
    until(lambda: len(served.server._connections) == 1)


def test_a_slow_watcher_loses_its_watch_and_not_the_server(served: Served) -> None:
    slow = served.authenticated()
    slow.send(wire.encode_request(wire.Request(1, "watch", ("w", 0))))
    client = served.client()
    for number in range(100):
        client.put("w", number.to_bytes(1 << 20, "big"))
    assert served.store._state._history_bytes <= 65 << 20
    replies = [wire.decode_reply(slow.receive())]
    while replies[-1].status == wire.EVENT and len(replies) < 100:
        replies.append(wire.decode_reply(slow.receive()))
    assert replies[-1].status == wire.FAILURE
    assert "List the prefix again" in str(wire.decode_failure(replies[-1].body))


class BrokenStore(MemoryStore):
    async def add(self, key: str, amount: int) -> int:
        raise ZeroDivisionError("a fault in the store")


def test_a_fault_of_the_store_is_told_to_the_client(loop_thread: Any) -> None:
    store: Store = BrokenStore()
    server = StoreServer(store, SECRET)
    endpoint = loop_thread.run(server.start("tcp:127.0.0.1:0"))
    try:
        with StoreClient.connect(endpoint, SECRET, GUARD) as client:
            with pytest.raises(StoreError, match="ZeroDivisionError"):
                client.add("n", 1)
            assert client.get("n") is None
    finally:
        loop_thread.run(server.close())


# --- closing and restarting the server ---


def test_close_ends_waits_and_watches_of_clients(served: Served) -> None:
    client = served.client()
    with ThreadPoolExecutor(2) as pool, client.watch("", 0) as watch:
        pending = [pool.submit(client.wait, ["never"], GUARD), pool.submit(watch.next, GUARD)]
        until(lambda: served.num_waiting() == 2)
        served.loop.run(served.server.close())
        for call in pending:
            with pytest.raises(StoreError, match=served.endpoint) as raised:
                call.result(GUARD)
            assert not isinstance(raised.value, StoreTimeout)
    with pytest.raises(StoreError, match="get"):
        client.get("a")


def test_closing_a_client_always_wakes_its_waiting_threads(served: Served) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # a descriptor closed under a thread about to wait is a race
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(100):
                client = served.client()
                with client.watch("", 0) as watch:
                    event = pool.submit(watch.next, 2 * GUARD)
                    wait = pool.submit(client.wait, ["never"], 2 * GUARD)
                    client.close()
                    for call in (event, wait):
                        with pytest.raises(StoreError):
                            call.result(GUARD)
    finally:
        sys.setswitchinterval(interval)


def test_a_client_comes_back_after_the_server_did(served: Served) -> None:
    client = served.client()
    client.put("a", b"1")
    served.loop.run(served.server.close())
    served.server = StoreServer(served.store, SECRET)
    served.loop.run(served.server.start(served.endpoint))
    entry = client.get("a")
    assert entry is not None
    assert entry.value == b"1"


# --- the blocking client's deadlines ---


def test_connect_waits_for_a_server_that_comes_later(no_leaks: None) -> None:
    endpoint = f"unix:@torsh-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(StoreClient.connect, endpoint, SECRET, GUARD)
        time.sleep(0.1)
        with HostedStore.start(endpoint, SECRET), connecting.result(GUARD) as client:
            assert client.put("a", b"") == 1


def test_connect_gives_up_at_its_deadline(no_leaks: None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"tcp:127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(StoreTimeout, match=f"{endpoint}.*refused"):
            StoreClient.connect(endpoint, SECRET, 0.2)


def test_a_silent_server_is_a_timeout(no_leaks: None) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(StoreTimeout):
            StoreClient.connect(f"tcp:127.0.0.1:{listener.getsockname()[1]}", SECRET, 0.2)


class StuckStore(MemoryStore):
    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.wait(["never"], GUARD))["never"].revision


def test_a_request_ends_at_its_deadline(loop_thread: Any) -> None:
    server = StoreServer(StuckStore(), SECRET)
    endpoint = loop_thread.run(server.start("tcp:127.0.0.1:0"))
    try:
        with StoreClient.connect(endpoint, SECRET, GUARD, request_timeout=0.2) as client:
            with pytest.raises(StoreTimeout, match=r"put\('a'\) at tcp:.*did not answer"):
                client.put("a", b"")
            assert client.get("a") is None
    finally:
        loop_thread.run(server.close())


def test_a_forked_child_uses_connections_of_its_own(served: Served) -> None:
    client = served.client()
    client.put("a", b"1")
    child = os.fork()
    if child == 0:
        os._exit(0 if client.add("n", 1) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.add("n", 1) == 2


# --- scopes ---


def test_scopes_never_meet(served: Served) -> None:
    client = served.client()
    one, two = client.scoped("group/1/"), client.scoped("group/2/")
    revision = one.put("a", b"1")
    assert two.get("a") is None
    assert two.list("").items == ()
    assert one.transact([Compare("a", revision)], [Put("b", b""), Delete("b2")]).succeeded
    assert two.transact([Compare("a", 0)], []).succeeded
    assert one.delete("b")
    assert [e.key for e in client.list("").items] == ["group/1/a"]
    assert one.wait(["a"], 0)["a"].revision == revision
    with one.watch("", 0) as watch:
        assert watch.next(GUARD).key == "a"
    inner = one.scoped("x/")
    assert inner.add("n", 3) == 3
    assert one.delete("x/n")
    one.close()
    assert client.get("group/1/a") is not None


# --- hosted stores and endpoints ---


def test_a_hosted_store_leaves_no_thread(no_leaks: None) -> None:
    hosted = HostedStore.start("tcp:127.0.0.1:0", SECRET)
    assert any(thread.name == "torsh-store" for thread in threading.enumerate())
    hosted.close()
    hosted.close()
    assert not any(thread.name == "torsh-store" for thread in threading.enumerate())


def test_an_address_in_use_is_named(no_leaks: None) -> None:
    hosted = HostedStore.start("tcp:127.0.0.1:0", SECRET)
    with hosted, pytest.raises(StoreError, match=f"{hosted.endpoint}.*another process"):
        HostedStore.start(hosted.endpoint, SECRET)


@pytest.mark.parametrize("listen", ["nowhere", "tcp:no-such-host.invalid:0"])
def test_a_wrong_endpoint_is_a_config_error(no_leaks: None, listen: str) -> None:
    with pytest.raises(ConfigError, match=listen.split(":")[-2] if ":" in listen else listen):
        HostedStore.start(listen, SECRET)


def test_a_socket_file_is_private_replaced_when_stale_and_removed(
    no_leaks: None, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with HostedStore.start(f"unix:{path}", SECRET) as hosted:
        assert path.stat().st_mode & 0o777 == 0o600
        with StoreClient.connect(hosted.endpoint, SECRET, GUARD) as client:
            client.put("a", b"")
        with pytest.raises(StoreError, match="another process"):
            HostedStore.start(hosted.endpoint, SECRET)
        assert path.exists()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(no_leaks: None, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(StoreError, match="precious"):
        HostedStore.start(f"unix:{path}", SECRET)
    assert path.read_text() == "data"
