"""Endpoints of etcd as people write them, and options that do not go together."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from torsh_runtime.errors import ConfigError
from torsh_runtime.store.etcd.config import Address, EtcdConfig


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("etcd-0", Address("etcd-0", 2379, False)),
        ("10.0.0.1:4001", Address("10.0.0.1", 4001, False)),
        ("[::1]:4001", Address("::1", 4001, False)),
        ("[fd00::2]", Address("fd00::2", 2379, False)),
        ("http://etcd-0:1", Address("etcd-0", 1, False)),
        ("https://etcd-0/", Address("etcd-0", 2379, True)),
    ],
)
def test_an_endpoint(text: str, address: Address) -> None:
    assert EtcdConfig(endpoints=(text,)).addresses() == (address,)


def test_certificates_ask_for_tls() -> None:
    config = EtcdConfig.parse("a, b:1 ,a:2379", ca="ca.pem")
    assert config.addresses() == (Address("a", 2379, True), Address("b", 1, True))


@pytest.mark.parametrize(
    "text",
    [
        *("", "a,", "::1", "fd00::2:2379", "[::1", "a:x", "a:70000", "a:0", ":2379", "tcp:a:1"),
        *("a b", "ftp://a", "http://", "a/v3", "user:pw@a", "a?x"),
    ],
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ConfigError, match="Write host:port"):
        EtcdConfig.parse(text).addresses()


@pytest.mark.parametrize(
    "options",
    [
        {"endpoints": ()},
        {"cert": "c"},
        {"key": "k"},
        {"user": "u"},
        {"password": "p"},
        {"request_timeout": 0.0},
        {"request_timeout": float("nan")},
        {"request_timeout": float("inf")},
        {"endpoints": ("http://a",), "ca": "ca.pem"},
    ],
)
def test_what_does_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EtcdConfig(**{"endpoints": ("a",), **options})


def test_a_password_is_never_shown() -> None:
    assert "hidden" not in repr(EtcdConfig(endpoints=("a",), user="u", password="hidden"))


@pytest.mark.parametrize(
    ("endpoints", "hosts"),
    [
        ("a,https://b,127.0.0.1,[::1],localhost", ["a"]),
        ("https://a", []),
        ("10.0.0.1:1,http://b", ["10.0.0.1", "b"]),
    ],
)
def test_who_gets_the_password_in_clear(endpoints: str, hosts: list[str]) -> None:
    config = EtcdConfig.parse(endpoints, user="u", password="p")
    assert [address.host for address in config.password_in_clear()] == hosts
    assert EtcdConfig.parse(endpoints).password_in_clear() == ()


def test_it_is_loaded_only_when_asked_for() -> None:
    code = "import sys, torsh_runtime, torsh_runtime.store.server; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "torsh_runtime.store.etcd" not in loaded.stdout.split()
