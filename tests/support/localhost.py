"""Machines on which nothing resolves "localhost": a minimal Debian has no /etc/hosts."""

from __future__ import annotations

import socket

import pytest


def _is_resolved() -> bool:
    try:
        socket.getaddrinfo("localhost", None)
    except socket.gaierror:
        return False
    return True


needs_localhost = pytest.mark.skipif(
    not _is_resolved(), reason="nothing resolves 'localhost' here (/etc/hosts)"
)


def skip_unless_torchrun_starts() -> None:
    """Skip the test where torchrun would wait for localhost until it is killed."""
    if not _is_resolved():
        pytest.skip("torchrun does not start where nothing resolves 'localhost'")
