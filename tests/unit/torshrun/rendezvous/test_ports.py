"""A port that is taken is named together with its holder."""

from __future__ import annotations

import os
import socket

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.rendezvous.ports import HeldPorts, choose_port


def test_a_free_port() -> None:
    assert 1 <= choose_port(0) <= 65535


def test_the_wanted_port_if_it_is_free() -> None:
    port = choose_port(0)
    assert choose_port(port) == port


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"\(pid {os.getpid()}\) holds it"):
            choose_port(port)


def test_held_ports_are_nobody_elses_until_they_are_released() -> None:
    ports = HeldPorts()
    taken = ports.take()
    for port in taken:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
    drawn = set()
    for _ in range(200):  # what the kernel gives to who asks for any
        with socket.socket() as other:
            other.bind(("", 0))
            drawn.add(other.getsockname()[1])
    assert not drawn & {*taken}
    with socket.socket() as server:  # as torch's and JAX's do
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", taken[0]))
        server.listen()
    assert not {*ports.take()} & {*taken}
    ports.release()
    with socket.socket() as other:
        other.bind(("", taken[1]))
