"""Ports and paths in the words of workers."""

from __future__ import annotations

import pytest

from torshrun.failure.ports_and_paths import path_in, port_in


@pytest.mark.parametrize(
    ("said", "port"),
    [
        ("failed to listen. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE", 29500),
        ("OSError: [Errno 98] address already in use ('127.0.0.1', 8080)", 8080),
        ("bind: Address already in use [::1]:6006", 6006),
        ("OSError: [Errno 98] Address already in use", 0),
        ("port 29500 is fine\nAddress already in use", 0),
        ("address already in use port 99999", 0),
        ("x" * 100_000 + " port 1 in use", 0),
    ],
)
def test_the_port_that_is_in_use(said: str, port: int) -> None:
    assert port_in(said) == port


def test_the_file_for_which_there_is_no_space() -> None:
    assert path_in("OSError: [Errno 28] No space left on device: '/data/a.pt'") == "/data/a.pt"
    assert path_in("OSError: [Errno 28] No space left on device") == ""
