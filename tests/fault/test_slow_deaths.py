"""Ranks that are killed and take long to end, because their memory has to be freed first."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.much_memory import HOLD, runs
from support.processes import soon

import torsh_runtime as tr

VICTIM = 1
ATTEMPTS = 5
SYS_EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]

WAITS: dict[str, Callable[[tr.ProcessGroup], object]] = {
    "barrier": tr.barrier,
    "recv": lambda group: tr.recv(np.zeros(1), VICTIM, group),
    "all_reduce": lambda group: tr.all_reduce(np.zeros(1 << 20), group=group),
}


def pid_of_victim() -> int:
    pids = np.zeros(2, np.int64)
    tr.all_gather_into_tensor(pids, np.array([os.getpid()]))
    return int(pids[VICTIM])


def held(times: int = 200) -> object:
    scope: dict[str, Any] = {}
    exec(HOLD, scope)
    return scope["hold"](times)


@pytest.mark.parametrize("which", ["default group", "another group", "with a fork"])
@pytest.mark.parametrize("wait", sorted(WAITS))
def test_a_peer_is_lost_before_its_memory_is_freed(
    process_world: Any, wait: str, which: str
) -> None:
    def body(rank: int) -> bool:
        process = os.pidfd_open(pid_of_victim())
        kept = held() if rank == VICTIM else None
        group = tr.new_group() if which == "another group" else tr.group.WORLD
        assert group is not None
        if kept and which == "with a fork" and os.fork() == 0:
            time.sleep(0.5)
            os._exit(0)
        tr.barrier()
        if rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(tr.PeerLost):
            WAITS[wait](group)
        return not select.select([process], [], [], 0)[0]

    survivors: list[Any] = []
    while True not in survivors and len(survivors) < ATTEMPTS:
        survivors.append(process_world(2, body, 60.0)[0])
    assert True in survivors, survivors


def test_a_rank_goes_on_without_its_first_thread(process_world: Any) -> None:
    """It looks as if it were ending, and so does a group that the thread has made."""

    def go_on() -> None:
        first = Path(f"/proc/self/task/{os.getpid()}/stat")
        assert soon(lambda: first.read_text().rpartition(")")[2].split()[0] == "Z")
        for _ in range(2):
            time.sleep(0.1)  # the other one waits, and looks around
            tr.all_reduce(np.ones(1))
        os._exit(0)

    def body(rank: int) -> list[float]:
        if rank == VICTIM:
            threading.Thread(target=go_on).start()
            ctypes.CDLL(None).syscall(SYS_EXIT, 0)
        sums = [np.ones(1), np.ones(1)]
        for each in sums:
            tr.all_reduce(each)
        return [float(each[0]) for each in sums]

    assert process_world(2, body, 60.0)[0] == [2.0, 2.0]


def test_a_rank_that_becomes_another_program_is_lost_when_that_ends(process_world: Any) -> None:
    def body(rank: int) -> bool:
        pid = pid_of_victim()
        tr.barrier()
        if rank == VICTIM:
            os.execv("/bin/sleep", ["sleep", "0.3"])
        with pytest.raises(tr.PeerLost):
            tr.barrier()
        return runs(pid)

    assert process_world(2, body, 60.0)[0] is False


def test_random_ranks_are_killed_at_random_moments(
    process_world: Any, request: pytest.FixtureRequest
) -> None:
    def body(rank: int) -> tuple[int, ...]:
        group = tr.new_group()
        random = np.random.default_rng(seed)
        victim, steps = random.integers(3), random.integers(40)
        kept = held(20) if random.integers(2) and rank == victim else None
        tr.barrier()
        for step in range(1000):
            if step == steps and rank == victim:
                del kept
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                tr.all_reduce(np.ones(1 << int(random.integers(18))), group=(None, group)[step % 2])
            except tr.PeerLost as error:
                return (int(victim), error.rank)
        return ()

    for seed in range(300 if request.config.getoption("--soak") else 6):
        told = process_world(3, body, 60.0)
        survivors = [each for each in told if not isinstance(each, Raised)]
        assert len(survivors) == 2, (seed, told)
        assert all(victim == blamed for victim, blamed in survivors), (seed, told)
