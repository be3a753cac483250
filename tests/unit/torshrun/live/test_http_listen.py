"""Addresses to listen on: of both families, and refused with a reason."""

from __future__ import annotations

import socket

import pytest
from support.localhost import needs_localhost

from torsh_runtime.errors import ConfigError
from torshrun.live.http_server import listen


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def reaches(host: str, listener: socket.socket) -> bool:
    """Whether a client that calls this host comes to the listener."""
    with socket.create_connection((host, listener.getsockname()[1]), timeout=20):
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return False
        connection.close()
        return True


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("localhost", marks=needs_localhost), ""]
)
def test_ipv4(host: str) -> None:
    with listen(host, 0) as listener:
        assert reaches("127.0.0.1", listener)


@pytest.mark.parametrize("host", ["::1", ""])
@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6 on the loopback interface")
def test_ipv6(host: str) -> None:
    with listen(host, 0) as listener:
        assert reaches("::1", listener)


def test_a_given_port_is_had_again_at_once() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert reaches("127.0.0.1", listener)
    with listen("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


def test_a_taken_port_is_refused() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        why = rf"127.0.0.1:{port} \(Address already in use\).*ss -ltnp.* another port"
        with pytest.raises(ConfigError, match=why):
            listen("127.0.0.1", port)
        with pytest.raises(ConfigError, match=f" :{port} .Address already in use"):
            listen("", port)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "Cannot assign"),
        ("2001:db8::1", r"\[2001:db8::1\]:9090"),
        ("no-such-host.invalid", "has no address"),
        ("a..b", "has no address"),
        ("x" * 300, "has no address"),
    ],
)
def test_an_address_that_is_not_ours_is_refused(host: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        listen(host, 9090)
