"""How workers let each other in."""

from __future__ import annotations

import queue
import secrets
import socket
import time

import pytest

from torsh_runtime.rpc.connector import Connector, Opened, PendingConnections, Unreachable
from torsh_runtime.rpc.directory import Worker, worker_here
from torsh_runtime.rpc.options import WorkerInfo

SECRET = bytes(32)


def test_who_only_looks_whether_a_worker_is_alive_is_not_let_in() -> None:
    """Or the end of that connection would make the worker look in turn, and so on."""
    lobby, caller = PendingConnections(SECRET, 0), PendingConnections(SECRET, 1)
    address = f"\0torsh-test-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    worker: Worker = worker_here(WorkerInfo("w", 0), [address], [], lobby.token)
    came: queue.Queue[Opened] = queue.Queue()
    door = Connector([listener], lobby, came.put)
    try:
        for _ in range(3):
            caller.check_alive(worker, is_near=True, deadline=time.monotonic() + 60)
        own = caller.connect(worker, is_near=True, deadline=time.monotonic() + 60)
        other = came.get(timeout=60)
        assert own.keys.own == other.keys.peer
        assert came.empty()
        own.sock.close()
        other.sock.close()
    finally:
        door.close()
    with pytest.raises(Unreachable):
        caller.check_alive(worker, is_near=True, deadline=time.monotonic() + 60)
