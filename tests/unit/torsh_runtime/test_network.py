"""Which interface and address are chosen, and what is refused."""

from __future__ import annotations

import psutil
import pytest

from torsh_runtime.backends.native.network import Network, is_loopback, listen
from torsh_runtime.errors import ConfigError


def test_defaults() -> None:
    network = Network.from_environ({})
    assert (network.secret, network.interfaces, network.streams) == (b"", (), 2)
    assert network.master == "127.0.0.1"


def test_the_environment_is_read() -> None:
    environ = {
        "TORSH_SECRET": "0aff" * 8,
        "GLOO_SOCKET_IFNAME": "eth9",
        "TORSH_SOCKET_IFNAME": "ib0, eth0",
        "TORSH_SOCKET_STREAMS": "4",
        "MASTER_ADDR": "[fd00::1]",
    }
    network = Network.from_environ(environ)
    assert network.secret == b"\x0a\xff" * 8
    assert network.interfaces == ("ib0", "eth0")
    assert network.streams == 4
    assert network.master == "fd00::1"


def test_the_host_of_the_store_goes_before_master_addr() -> None:
    network = Network.from_environ({"MASTER_ADDR": "10.0.0.1"})
    assert network.towards("tcp:[fd00::9]:29500").master == "fd00::9"
    assert network.towards("unix:@name").master == "10.0.0.1"
    assert network.towards("").master == "10.0.0.1"


@pytest.mark.parametrize("streams", ["0", "65", "-1", "two", ""])
def test_wrong_numbers_of_streams_are_refused(streams: str) -> None:
    with pytest.raises(ConfigError, match="TORSH_SOCKET_STREAMS"):
        Network.from_environ({"TORSH_SOCKET_STREAMS": streams})


@pytest.mark.parametrize("secret", ["not hexadecimal" * 4, "ab", "ab" * 15, "abc" * 11])
@pytest.mark.parametrize("name", ["TORSH_SECRET", "TORSH_WORKER_SECRET"])
def test_a_malformed_or_short_secret_is_refused(name: str, secret: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.* no hexadecimal number of 32 digits"):
        Network.from_environ({name: secret})


def test_the_first_interface_that_exists_is_used() -> None:
    assert Network(interfaces=("none-such", "lo")).addresses()[0] == "127.0.0.1"


def test_interfaces_that_do_not_exist_are_named_with_those_that_do() -> None:
    network = Network.from_environ({"GLOO_SOCKET_IFNAME": "none-such"})
    with pytest.raises(ConfigError, match=r"GLOO_SOCKET_IFNAME=none-such .*\blo\b"):
        network.addresses()


def test_an_interface_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"tun0": []})
    with pytest.raises(ConfigError, match=r"tun0 .* has no IPv4 address"):
        Network(interfaces=("tun0",)).addresses()


def test_the_route_to_the_master_chooses() -> None:
    assert Network(master="127.0.0.1").addresses()[-1] == "127.0.0.1"


def test_a_master_without_a_route_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no-such-host.*MASTER_ADDR"):
        Network(master="no-such-host.invalid").addresses()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)
    assert not is_loopback("fe80::1%eth0")


def test_listening_at_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"198\.51\.100\.1"):
        listen("198.51.100.1")
