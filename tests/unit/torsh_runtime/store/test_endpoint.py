from __future__ import annotations

import socket

import pytest

from torsh_runtime.errors import ConfigError
from torsh_runtime.store.endpoint import TcpEndpoint, UnixEndpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:@name", UnixEndpoint("@name")),
        ("unix:/run/store:1", UnixEndpoint("/run/store:1")),
        ("tcp:localhost:29500", TcpEndpoint("localhost", 29500)),
        ("tcp:[::1]:0", TcpEndpoint("::1", 0)),
        ("tcp:10.0.0.1:65535", TcpEndpoint("10.0.0.1", 65535)),
    ],
)
def test_endpoints_are_read_and_written(text: str, endpoint: object) -> None:
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "unix:", "unix:@", "unix:relative", "unix:/a\0b", "unix:@" + "x" * 107, "http://a:1"),
        *(
            "tcp:",
            "tcp:host",
            "tcp::1",
            "tcp:host:",
            "tcp:host:-1",
            "tcp:host:65536",
            "tcp:host:1x",
        ),
        *("tcp:::1:80", "tcp:[]:1", "tcp:[::1:1", "tcp:host:\u0661", "tcp:host:" + "9" * 5000),
    ],
)
def test_wrong_endpoints_say_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match="tcp:host:port"):
        parse_endpoint(text)


@pytest.mark.parametrize(
    "host", ["a" * 64, "a" * 64 + ".org", "a..b", ".a", "\u00e9" * 64, "a\ud800b", "."]
)
def test_what_no_resolver_takes_is_no_host(host: str) -> None:
    with pytest.raises(UnicodeError):
        socket.getaddrinfo(host, 1)
    with pytest.raises(ConfigError, match="no host can have that name"):
        parse_endpoint(f"tcp:{host}:1")


@pytest.mark.parametrize("host", ["a" * 63, "a.b.", "\u00e9", "10.0.0.1", "fe80::1%eth0"])
def test_what_a_resolver_takes_is_one(host: str) -> None:
    assert parse_endpoint(str(TcpEndpoint(host, 1))) == TcpEndpoint(host, 1)


def test_abstract_names_begin_with_nul() -> None:
    assert UnixEndpoint("@name").address == "\0name"
    assert UnixEndpoint("/path").address == "/path"
