"""How the etcd store gets in: names and addresses, TLS, users, and what is no etcd at all."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from pathlib import Path

import pytest
from support.certificates import make_certificates, openssl
from support.etcd_scenes import opened, play
from support.etcd_servers import VERSIONS, EtcdCluster, EtcdServer, binary_or_skip
from support.hosts import needs_address

from torsh_runtime.errors import ConfigError, StoreError, StoreTimeout
from torsh_runtime.store.etcd import EtcdConfig, EtcdStore

pytestmark = pytest.mark.etcd

ROLE = {"key": "am9iLw==", "range_end": "am9iMA=="}  # "job/" and what follows it


@pytest.fixture(params=VERSIONS)
def etcd(request: pytest.FixtureRequest) -> Path:
    return binary_or_skip(request.param)


# --- names and addresses ---


@pytest.mark.parametrize(
    "host",
    [pytest.param("localhost", marks=needs_address("localhost")), "[::1]", "http://127.0.0.1"],
)
def test_names_and_addresses(etcd: Path, tmp_path: Path, host: str) -> None:
    if "::" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")

    async def scene(port: int) -> None:
        async with opened(f"{host}:{port}", f"nowhere.invalid:{port}") as store:
            for _ in range(3):
                await store.put("a", b"1")

    hosts = ("127.0.0.1", "[::1]") if _has_ipv6() else ("127.0.0.1",)
    with EtcdCluster(etcd, tmp_path, hosts=hosts) as cluster:
        play(scene(cluster.members[0].port))


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


# --- TLS ---


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, another-ca.pem, and what ca.pem has signed: server.pem, client.pem, with keys."""
    home = tmp_path_factory.mktemp("certificates")
    make_certificates(home)
    return home


def _tls(etcd: Path, folder: Path, certificates: Path) -> EtcdCluster:
    return EtcdCluster(
        etcd,
        folder,
        1,
        f"--cert-file={certificates / 'server.pem'}",
        f"--key-file={certificates / 'server-key.pem'}",
        f"--trusted-ca-file={certificates / 'ca.pem'}",
        "--client-cert-auth",
        tls=True,
    )


def test_both_sides_prove_who_they_are(etcd: Path, tmp_path: Path, certificates: Path) -> None:
    ca, cert, key = (str(certificates / n) for n in ("ca.pem", "client.pem", "client-key.pem"))

    async def scene() -> None:
        async with (
            opened(*cluster.endpoints, ca=ca, cert=cert, key=key) as store,
            aclosing(store.watch("", 0)) as events,
        ):
            revision = await store.put("a", b"x" * 100_000)
            assert (await anext(events)).revision == revision
            await store.keep_alive(await store.grant(10))
        for options in ({"ca": ca}, {"ca": str(certificates / "another-ca.pem")}):
            async with opened(*cluster.endpoints, **options, request_timeout=0.5) as store:
                with pytest.raises(StoreTimeout, match=r"certificate|SSL|Connection lost|bytes"):
                    await store.get("a")
        async with opened(f"http://{cluster.endpoints[0]}", request_timeout=0.5) as store:
            with pytest.raises(StoreError):
                await store.get("a")

    with _tls(etcd, tmp_path, certificates) as cluster:
        play(scene())


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    for name in ("junk.pem", "absent.pem"):
        with pytest.raises(ConfigError, match=name):
            EtcdStore(EtcdConfig(endpoints=("h",), ca=str(tmp_path / name)))


def test_an_encrypted_key_does_not_ask(certificates: Path, tmp_path: Path) -> None:
    key = tmp_path / "encrypted.pem"
    openssl(certificates, f"ec -in client-key.pem -aes128 -passout pass:x -out {key}")
    cert = str(certificates / "client.pem")
    with pytest.raises(ConfigError, match=r"encrypted\.pem is encrypted"):
        EtcdStore(EtcdConfig(endpoints=("h",), cert=cert, key=str(key)))


# --- users ---


def _with_users(server: EtcdServer) -> None:
    for user, role in (("root", "root"), ("worker", "jobs")):
        server.post("auth/role/add", {"name": role})
        server.post("auth/user/add", {"name": user, "password": f"{user}'s"})
        server.post("auth/user/grant", {"user": user, "role": role})
    permission = {"name": "jobs", "perm": {"permType": "READWRITE", **ROLE}}
    server.post("auth/role/grant", permission)
    server.post("auth/enable", {})


def test_users_log_in_and_stay_logged_in(etcd: Path, tmp_path: Path) -> None:
    async def scene(server: EtcdServer) -> None:
        async with (
            opened(server.endpoint, user="worker", password="worker's") as store,
            aclosing(store.watch("job/", 1)) as events,
        ):
            await store.put("job/a", b"1")
            assert (await anext(events)).value == b"1"
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            server.kill()  # and with it all that it knew of who is logged in
            server.start()
            await store.put("job/a", b"2")
            assert (await following).value == b"2"
            assert (await store.identity("job/")).revision == 3

    with EtcdCluster(etcd, tmp_path) as cluster:
        _with_users(cluster.members[0])
        play(scene(cluster.members[0]))


def test_a_login_that_lapses_is_renewed(etcd: Path, tmp_path: Path) -> None:
    async def scene(server: EtcdServer) -> None:
        async with opened(server.endpoint, user="worker", password="worker's") as store:
            await store.put("job/a", b"1")
            await asyncio.sleep(3.5)
            async with aclosing(store.watch("job/", 1)) as events:  # the first to notice
                assert (await anext(events)).value == b"1"
            await asyncio.sleep(3.5)
            await store.put("job/a", b"2")

    with EtcdCluster(etcd, tmp_path, 1, "--auth-token-ttl=1") as cluster:
        _with_users(cluster.members[0])
        play(scene(cluster.members[0]))


def test_who_may_not_is_told_what_to_do(etcd: Path, tmp_path: Path) -> None:
    async def scene(server: EtcdServer) -> None:
        async with opened(server.endpoint) as store:
            for request in (store.get("job/a"), anext(store.watch("job/", 0))):
                with pytest.raises(StoreError, match="a user and a password"):
                    await request
        async with opened(server.endpoint, user="worker", password="wrong") as store:
            with pytest.raises(StoreError, match=r"logging in as 'worker'.*invalid"):
                await store.get("job/a")
        async with opened(server.endpoint, user="worker", password="worker's") as store:
            for request in (store.put("other", b""), anext(store.watch("", 0))):
                with pytest.raises(StoreError, match="role"):
                    await request
            assert await store.get("job/a") is None

    with EtcdCluster(etcd, tmp_path) as cluster:
        _with_users(cluster.members[0])
        play(scene(cluster.members[0]))


def test_a_user_where_there_are_none_is_refused(etcd: Path, tmp_path: Path) -> None:
    async def scene(endpoint: str) -> None:
        async with opened(endpoint, user="worker", password="worker's") as store:
            with pytest.raises(StoreError, match="leave user and password out"):
                await store.get("a")

    with EtcdCluster(etcd, tmp_path) as cluster:
        play(scene(cluster.members[0].endpoint))


# --- what is no etcd ---


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200000,
        b'HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n{"header":{"revision":1e400}}',
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        b"x" * 200_000,
    ],
)
def test_what_is_no_etcd_is_said_in_time(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def scene() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, opened(f"127.0.0.1:{port}", request_timeout=0.4) as store:
            for request in (store.get("a"), store.put("a", b""), store.keep_alive(1)):
                with pytest.raises(StoreError, match=f"127.0.0.1:{port}|etcd refused"):
                    await request

    play(scene())
