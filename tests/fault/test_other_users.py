"""Other users of the same host: they reach the sockets, and nothing behind them."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import pytest
from support.forked import Raised
from support.other_users import STRANGER, needs_root, stranger
from support.ports import free_address
from support.raw_clients import RawClient
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime.backends.native import connections, segment
from torsh_runtime.backends.native.connections import Endpoint, Keys, Listeners
from torsh_runtime.backends.native.host_info import HostInfo, Terms
from torsh_runtime.backends.native.network import Network
from torsh_runtime.errors import CommError, StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.remote import RemoteStore
from torsh_runtime.store.server import StoreServer

pytestmark = needs_root
GUARD = 60.0
SECRET = b"the job's secret"


def unix_name() -> str:
    return f"unix:@torsh-test-{secrets.token_hex(8)}"


@pytest.fixture(params=["unix", "tcp"])
def listen(request: pytest.FixtureRequest) -> str:
    return unix_name() if request.param == "unix" else "tcp:127.0.0.1:0"


# --- the store ---


def first_words(endpoint: str) -> bytes:
    client = RawClient(endpoint, b"")
    with closing(client):
        return client.receive()


def test_another_users_client_is_sent_away(listen: str) -> None:
    with HostedStore.start(listen, b"") as hosted:
        with stranger(lambda pipe: first_words(hosted.endpoint)) as other:
            said = other.says()
        with pytest.raises(StoreError, match=r"it refused this process: .* own user"):
            wire.decode_greeting(said)
        with StoreClient.connect(hosted.endpoint, b"", GUARD) as client:
            assert client.put("works", b"") == 1


@pytest.mark.parametrize("attempt", range(10))
def test_another_users_client_is_told_why(listen: str, attempt: int) -> None:
    """Even if the server has closed its end when the client looks whose it was."""
    connect = connect_asynchronously if attempt % 2 else connect_blocking

    def say_why(pipe: Connection) -> str:
        try:
            connect(hosted.endpoint)
        except StoreError as error:
            return str(error)
        return "let in"

    with HostedStore.start(listen, b"") as hosted, stranger(say_why) as other:
        assert "it speaks only with processes of its own user" in other.says()


def test_a_secret_does_not_open_a_unix_socket_to_others() -> None:
    with (
        HostedStore.start(unix_name(), SECRET) as hosted,
        stranger(lambda pipe: first_words(hosted.endpoint)) as other,
    ):
        said = other.says()
    with pytest.raises(StoreError, match="it refused this process"):
        wire.decode_greeting(said)


def test_over_tcp_a_secret_says_who_belongs_together() -> None:
    """As with containers that have users of their own."""

    def put(pipe: Connection) -> int:
        with StoreClient.connect(hosted.endpoint, SECRET, GUARD) as client:
            return client.put("works", b"")

    with HostedStore.start("tcp:127.0.0.1:0", SECRET) as hosted, stranger(put) as other:
        assert other.says() == 1


GREETING = wire.encode_greeting(bytes(wire.NONCE_BYTES))


class Squatter:
    """Somebody else's store, as it would look to clients, at an endpoint of their choice."""

    def __init__(self, listen: str, greeting: bytes) -> None:
        self._listen = listen
        self._greeting = greeting

    def __call__(self, pipe: Connection) -> bytes:
        """Says its endpoint; returns what the first client sent."""
        if self._listen.startswith("unix:@"):
            listener, endpoint = socket.socket(socket.AF_UNIX), self._listen
            listener.bind("\0" + endpoint.removeprefix("unix:@"))
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            endpoint = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        listener.listen()
        pipe.send(("said", endpoint))
        sock, _ = listener.accept()
        sock.sendall(self._greeting)
        return sock.recv(1 << 16)


def connect_blocking(endpoint: str) -> None:
    StoreClient.connect(endpoint, b"", GUARD).close()


def connect_asynchronously(endpoint: str) -> None:
    async def get() -> None:
        remote = RemoteStore(endpoint, b"", GUARD)
        try:
            await remote.get("a")
        finally:
            await remote.close()

    asyncio.run(get())


@pytest.mark.parametrize("connect", [connect_blocking, connect_asynchronously])
def test_another_users_store_is_not_spoken_with(
    listen: str, connect: Callable[[str], None]
) -> None:
    with stranger(Squatter(listen, GREETING)) as other:
        endpoint = other.says()
        with pytest.raises(StoreError, match=f"at {endpoint}: it is served by .*uid {STRANGER}"):
            connect(endpoint)
        assert other.says() == b"", "something was sent to it"


def test_another_users_silence_is_told_from_a_store_that_is_busy(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torsh_runtime.store.channel.ATTEMPT_SECONDS", 1.0)
    with stranger(Squatter(listen, b"")) as other:
        with pytest.raises(StoreError, match=f"it is served by .*uid {STRANGER}"):
            connect_blocking(other.says())
        assert other.says() == b""


# --- floods ---

FLOOD = 2000


def flood(endpoint: str) -> int:
    """Connect again and again; how many of these connections came as far as a greeting."""
    address = "\0" + endpoint.removeprefix("unix:@")
    greeted, refused = 0, len(wire.encode_refusal(""))
    for _ in range(FLOOD):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(address)
            said = sock.recv(1 << 10)
            assert not said or len(said) > refused
            greeted += wire.MAGIC.encode() in said
    return greeted


def test_a_flood_of_another_user_reaches_no_handshake_and_holds_up_nobody() -> None:
    told: list[str] = []

    class Telling(HostedStore):
        async def _serve(self, listen: str, secret: bytes) -> None:
            stop = asyncio.Event()
            self._ready.set_result((asyncio.get_running_loop(), stop))
            server = StoreServer(MemoryStore(), secret, on_refused=told.append)
            self._endpoint.set_result(await server.start(listen))
            await stop.wait()
            await server.close()

    with (
        Telling.start(unix_name(), SECRET) as hosted,
        stranger(lambda pipe: flood(hosted.endpoint)) as other,
    ):
        for number in range(20):
            with StoreClient.connect(hosted.endpoint, SECRET, GUARD) as client:
                assert client.put("own", b"") == number + 1
        assert other.says() == 0
    assert told[0] == f"a process of uid {STRANGER}, another user of this host"
    assert sum(int(line.rsplit(" ", 2)[1]) for line in told[1:]) == FLOOD - 1
    assert len(told) < FLOOD / 10


# --- jobs started by hand, without a secret ---


class Bomb:
    """Whoever unpickles it says so."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def join(address: str, rank: int, bomb: str) -> str:
    """Be one of two ranks, and exchange objects; what came of it."""
    try:
        tr.init_process_group("native", address, 5.0, 2, rank)
        found: list[Any] = [None, None]
        tr.all_gather_object(found, Bomb(bomb) if rank else "harmless")
        tr.destroy_process_group()
    except tr.TorshError as error:
        return f"{type(error).__name__}: {error}"
    return "joined"


@pytest.fixture
def bomb(tmp_path: Any) -> str:
    tmp_path.chmod(0o777)
    return str(tmp_path / "unpickled")


def test_another_user_cannot_join_a_job_started_by_hand(bomb: str) -> None:
    address = free_address()
    with stranger(lambda pipe: (pipe.recv(), join(address, 1, bomb))[1]) as other:
        found: list[str] = []
        rank = threading.Thread(target=lambda: found.append(join(address, 0, bomb)))
        rank.start()
        other.tell("go")
        assert "it refused this process" in other.says()
        rank.join(GUARD)
    assert found[0].startswith("CommTimeout")
    assert not os.path.exists(bomb)  # noqa: PTH110


def test_a_rank_does_not_join_another_users_job(bomb: str) -> None:
    address = free_address()

    def squat(pipe: Connection) -> str:
        pipe.send(("said", "up"))
        return join(address, 0, bomb)

    with stranger(squat) as other:
        other.says()
        said = join(address, 1, bomb)
        assert f"uid {STRANGER}" in said
        assert said.startswith("StoreError")


def exchange(rank: int) -> list[Any]:
    found: list[Any] = [None, None]
    tr.all_gather_object(found, f"rank {rank}")
    return found


def test_ranks_of_one_user_exchange_objects_without_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORSH_SECRET", raising=False)
    assert run_processes(2, exchange) == [["rank 0", "rank 1"]] * 2


def test_where_others_reach_the_store_objects_need_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORSH_SECRET", raising=False)
    monkeypatch.setattr("support.worlds.free_address", lambda: everywhere)
    everywhere = free_address().replace("127.0.0.1", "0.0.0.0")
    for found in run_processes(2, exchange):
        assert isinstance(found, Raised)
        assert "TORSH_SECRET" in str(found.error)


# --- the segment ---


def test_another_user_gets_no_segment_even_with_the_token() -> None:
    with segment.Offer() as offer:
        first = HostInfo.here(offer.name, offer.token, Terms())

        def fetch(pipe: Connection) -> str:
            pipe.send(("said", os.getpid()))
            places = {0: first, 1: replace(first, pid=os.getpid())}
            try:
                os.close(segment.share(offer, 1, places, (4096,), 5.0))
            except CommError as error:
                return str(error)
            return "got it"

        with stranger(fetch) as other:
            places = {0: first, 1: replace(first, pid=other.says())}
            with pytest.raises(CommError):
                segment.share(offer, 0, places, (4096,), 2.0)
            assert "cannot be reached" in other.says()


def test_another_users_segment_is_not_taken() -> None:
    def offer_memory(pipe: Connection) -> str:
        with segment.Offer() as offer:
            own = HostInfo.here(offer.name, offer.token, Terms())
            pipe.send(("said", own))
            told = {0: own, 1: replace(own, pid=pipe.recv())}
            try:
                os.close(segment.share(offer, 0, told, (4096,), GUARD))
            except CommError as error:
                return str(error)
            return "handed out"

    with stranger(offer_memory) as other, segment.Offer() as own:
        first = other.says()
        other.tell(os.getpid())
        with pytest.raises(CommError, match=f"served by user .*uid {STRANGER}"):
            segment.share(own, 1, {0: first, 1: replace(first, pid=os.getpid())}, (4096,), 5.0)


def test_the_segments_size_is_sealed() -> None:
    descriptor = segment._create((4096,))
    try:
        for size in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        mmap.mmap(descriptor, 4096).close()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("size", "seals"), [(4096, 0), (100, segment._SEALS), (8192, 7)])
def test_memory_that_could_vanish_is_refused(size: int, seals: int) -> None:
    descriptor = os.memfd_create("torsh-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        with pytest.raises(CommError, match="nobody can take away"):
            segment._check_memory(descriptor, (4096,))
    finally:
        os.close(descriptor)


def test_an_ordinary_file_is_no_segment(tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, pytest.raises(CommError, match="not sealed"):
        segment._check_memory(file.fileno(), (4096,))


# --- links ---


def link(rank: int, doors: Listeners, contacts: dict[int, Endpoint]) -> tuple[int, ...]:
    """The descriptors of the lanes; none if the other was refused."""
    try:
        linked = connections.connect_all(rank, doors, contacts, Keys(b"", "g"), 3.0, lambda: None)
    except CommError:
        return ()
    return sum(linked.values(), ())


def opened() -> Any:
    return Listeners.opened(Network(master="127.0.0.1"))


@pytest.mark.parametrize("uid", [0, STRANGER])
@pytest.mark.parametrize("higher", [0, 1])
def test_links_without_a_secret_are_for_one_user(uid: int, higher: int) -> None:
    """The other knows all that the store says."""

    def run(pipe: Connection) -> int:
        with opened() as doors:
            pipe.send(("said", doors.contact))
            return len(link(1 - higher, doors, {higher: pipe.recv()}))

    with stranger(run, uid) as other, opened() as doors:
        contact = other.says()
        other.tell(doors.contact)
        lanes = link(higher, doors, {1 - higher: contact})
        assert (other.says() > 0) is (uid == 0)
    assert (len(lanes) > 0) is (uid == 0)
    for lane in lanes:
        os.close(lane)
