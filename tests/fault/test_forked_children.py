"""Ranks that die while children which they forked live on, with copies of all their descriptors."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.hosts import needs_hosts, plugged, run_on_hosts

import torsh_runtime as tr
from torsh_runtime import job

pytestmark = [needs_hosts, pytest.mark.netns]

SURVIVORS = 3
PATIENCE = 30.0
"""Seconds, the operations' own deadline: who notices the death by that alone gets CommTimeout."""


def reduce(group: tr.ProcessGroup, victim: int) -> None:
    tr.all_reduce(np.zeros(3), group=group)


def receive(group: tr.ProcessGroup, victim: int) -> None:
    tr.recv(np.zeros(3), victim, group, tag=5)


def fork_some(noticed: Path) -> None:
    """A child, and a grandchild whose parent is gone; they live until all others have noticed."""
    for is_grandchild in (False, True):
        if os.fork() == 0:
            if is_grandchild and os.fork():
                os._exit(0)
            until = time.monotonic() + 3 * PATIENCE
            while len(list(noticed.iterdir())) < SURVIVORS and time.monotonic() < until:
                time.sleep(0.02)
            os._exit(0)


@pytest.mark.parametrize("operation", [reduce, receive])
@pytest.mark.parametrize("victim", [1, 2])
def test_all_ranks_of_both_nodes_notice_the_death(
    operation: Callable[[tr.ProcessGroup, int], None],
    victim: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forked before, while and after a group is made."""
    monkeypatch.setattr(job, "_FAREWELL", 0.1)

    def body(rank: int) -> tuple[int, ...]:
        default, lost = tr.group.WORLD, []
        assert default is not None
        if rank == victim:
            fork_some(tmp_path)
            meanwhile = threading.Thread(target=fork_some, args=[tmp_path])
            meanwhile.start()
        group = tr.new_group()
        tr.barrier(group)
        if rank == victim:
            meanwhile.join()
            fork_some(tmp_path)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for each in (group, default):
                with pytest.raises(tr.PeerLost) as caught:
                    operation(each, victim)
                lost.append(caught.value.rank)
        finally:
            (tmp_path / str(rank)).touch()
        return tuple(lost)

    with plugged(2) as hosts:
        places = [hosts[0], hosts[0], hosts[1], hosts[1]]
        results = run_on_hosts(places, body, PATIENCE)
    survivors = [result for rank, result in enumerate(results) if rank != victim]
    assert survivors == [(victim, victim)] * SURVIVORS, [getattr(r, "error", r) for r in results]
