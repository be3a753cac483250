"""A port that is taken is named together with its holder."""

from __future__ import annotations

import os
import socket

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.workers.ports import choose_port


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
