"""Ranks that are killed and take long to end, because their memory has to be freed first."""

from __future__ import annotations

import mmap
import os
import select
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import torsh_runtime as tr

VICTIM = 1
MAPPED = 16 << 20
TIMES = 200
"""So often that is mapped: to free the page tables takes long, and needs little memory."""
ATTEMPTS = 5

WAITS: dict[str, Callable[[], object]] = {
    "barrier": tr.barrier,
    "recv": lambda: tr.recv(np.zeros(1), VICTIM),
    "all_reduce": lambda: tr.all_reduce(np.zeros(1 << 20)),
}


def much_memory() -> list[mmap.mmap]:
    file = os.memfd_create("much")
    os.ftruncate(file, MAPPED)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return [mmap.mmap(file, MAPPED, flags) for _ in range(TIMES)]


@pytest.mark.parametrize("wait", sorted(WAITS))
def test_a_peer_is_lost_before_its_memory_is_freed(process_world: Any, wait: str) -> None:
    def body(rank: int) -> bool:
        pids = np.zeros(2, np.int64)
        tr.all_gather_into_tensor(pids, np.array([os.getpid()]))
        process = os.pidfd_open(pids[VICTIM])
        held = much_memory() if rank == VICTIM else []
        tr.barrier()
        if held:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(tr.PeerLost):
            WAITS[wait]()
        return not select.select([process], [], [], 0)[0]

    survivors = [process_world(2, body, 60.0)[0] for _ in range(ATTEMPTS)]
    assert any(told is True for told in survivors), survivors
