"""Processes that die, stop or are interrupted in the middle of collectives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ports import free_address

import torsh_runtime as tr
from torsh_runtime.comm.default import default_group


def held() -> set[str]:
    """The threads, mappings and descriptors of this process."""
    numbers = os.listdir("/proc/self/fd")
    mapped = Path("/proc/self/maps").read_text()
    return {
        *(thread.name for thread in threading.enumerate()),
        *(number for number in numbers if os.path.lexists(f"/proc/self/fd/{number}")),
        *(line for line in mapped.splitlines() if "torsh-segment" in line),
    }


@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_peer_is_named_by_all(process_world: Any, victim: int, size: int) -> None:
    def body(rank: int) -> None:
        array = np.zeros(size)
        if rank == victim:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            tr.all_reduce(array)

    results = process_world(4, body, 60.0)
    assert results[victim].error.text == "killed by SIGKILL"
    for rank in set(range(4)) - {victim}:
        error = results[rank].error
        assert (error.kind, error.rank, error.op) == ("PeerLost", victim, "all_reduce")


def test_who_waits_for_a_message_names_its_sender(process_world: Any) -> None:
    """Rank 2's timeout, which is the first to pass, ends the group: rank 1 waits for rank 0."""

    def body(rank: int) -> None:
        time.sleep({0: 4.5, 1: 0.5, 2: 0.0}[rank])
        if rank:
            tr.recv(np.zeros(1), rank - 1)

    results = process_world(3, body, 3.0)
    assert [results[rank].error.missing for rank in (1, 2)] == [(0,), (1,)]


def test_a_peer_that_is_dead_already_is_named(process_world: Any) -> None:
    def body(rank: int) -> None:
        tr.barrier()
        if rank == 1:
            os._exit(3)
        time.sleep(0.3)
        tr.barrier()

    results = process_world(3, body, 60.0)
    assert [results[rank].error.rank for rank in (0, 2)] == [1, 1]


def test_a_stopped_peer_times_out_and_the_group_can_be_made_again(process_world: Any) -> None:
    def body(rank: int) -> str:
        tr.all_reduce(np.zeros(3))
        if rank == 1:
            child = os.fork()
            if child == 0:
                os.kill(os.getppid(), signal.SIGSTOP)
                time.sleep(3.0)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            time.sleep(0.2)
            os.waitpid(child, 0)
        with pytest.raises(tr.CommTimeout) as caught:
            tr.all_reduce(np.zeros(3))
        assert caught.value.missing == (1,)
        return "timed out"

    assert process_world(2, body, 1.0) == ["timed out", "timed out"]


def test_a_process_may_end_right_after_its_last_collective(process_world: Any) -> None:
    def body(rank: int) -> int:
        total = np.zeros(1)
        for _ in range(200):
            total[0] = 1
            tr.all_reduce(total)
        return int(total[0])

    for _ in range(5):
        assert process_world(4, body, 60.0) == [4] * 4


def test_ctrl_c_ends_a_wait_and_tells_the_peers(process_world: Any) -> None:
    def body(rank: int) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tr.barrier()
        if rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        if rank == 2:
            time.sleep(1.0)
        tr.barrier()

    results = process_world(3, body, 60.0)
    assert results[0].error.kind == "KeyboardInterrupt"
    for rank in (1, 2):
        assert results[rank].error.kind == "CommAborted"
        assert "rank 0 aborted" in results[rank].error.text


@pytest.mark.parametrize("size", [1, 200_000])
def test_an_abort_ends_messages_of_all_ranks(process_world: Any, size: int) -> None:
    def play(rank: int, rounds: int) -> None:
        for _ in range(rounds):
            for sender in range(2):
                tr.send(ball, 1 - rank) if rank == sender else tr.recv(ball, 1 - rank)

    def body(rank: int) -> None:
        play(rank, 10)
        if rank == 0:
            pending = default_group().recv(np.zeros(3), 1, 5, async_op=True)
            default_group().abort()
            with pytest.raises(tr.CommAborted, match="rank 0 aborted"):
                pending.wait()
            with pytest.raises(tr.CommAborted, match="rank 0 aborted"):
                tr.send(ball, 1)
        play(rank, 10**6)

    ball = np.zeros(size)
    for result in process_world(2, body, 60.0):
        assert result.error.kind == "CommAborted"


def test_messages_of_an_aborted_group_do_not_go_on_with_each_other(process_world: Any) -> None:
    def body(rank: int) -> None:
        ball = np.zeros(1)
        tr.barrier()
        if rank == 2:
            default_group().abort()
            tr.send(ball, 0)
        for number in range(10**6):
            tr.send(ball, 1 - rank) if number % 2 == rank else tr.recv(ball, 1 - rank)

    for result in process_world(3, body, 60.0):
        assert (result.error.kind, "rank 2 aborted" in result.error.text) == ("CommAborted", True)


def test_ranks_that_never_come_are_named(process_world: Any) -> None:
    def body(rank: int) -> None:
        tr.destroy_process_group()
        tr.init_process_group("native", free_address(), 0.5, 3, 0)

    error = process_world(1, body)[0].error
    assert error.kind == "CommTimeout"
    assert error.missing == (1, 2)


def test_groups_made_again_and_again_leave_nothing(process_world: Any) -> None:
    addresses = [free_address() for _ in range(3)]

    def body(rank: int) -> set[str]:
        tr.destroy_process_group()
        before = held()
        for turn in range(30):
            tr.init_process_group("native", addresses[turn % 2], 20.0, 2, rank)
            tr.all_reduce(np.ones(10))
            tr.destroy_process_group()
        left = held() - before
        tr.init_process_group("native", addresses[2], 20.0, 2, rank)
        return left

    assert process_world(2, body, 20.0) == [set(), set()]


def test_a_handler_that_leaves_the_group_ends_the_wait_it_interrupts(process_world: Any) -> None:
    def leave(*_: object) -> None:
        tr.destroy_process_group()
        raise SystemExit(3)

    def body(rank: int) -> None:
        if rank == 0:
            signal.signal(signal.SIGTERM, leave)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        else:
            time.sleep(1.0)
        tr.barrier()

    results = process_world(2, body, 60.0)
    assert results[0].error.kind == "SystemExit"
    assert results[1].error.kind == "CommAborted"


def test_a_handler_may_not_call_a_collective(process_world: Any) -> None:
    def body(rank: int) -> str:
        if rank == 0:
            signal.signal(signal.SIGUSR1, lambda *_: tr.barrier())
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        else:
            time.sleep(1.0)
        with pytest.raises(tr.CommAborted) as caught:
            tr.barrier()
        return str(caught.value)

    texts = process_world(2, body, 60.0)
    assert "signal handler" in texts[0]
    assert "rank 0 aborted" in texts[1]


def test_a_fork_is_no_rank(process_world: Any) -> None:
    def body(rank: int) -> tuple[int, float]:
        group = default_group()
        child = os.fork()
        if child == 0:
            try:
                assert not tr.is_initialized()
                group.all_reduce(np.zeros(3))
            except tr.CommAborted as error:
                group._backend.close()
                os._exit(7 if "fork" in str(error) else 1)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        array = np.ones(3)
        tr.all_reduce(array)
        return os.waitstatus_to_exitcode(status), float(array[0])

    assert process_world(2, body, 20.0) == [(7, 2.0), (7, 2.0)]


def test_a_thread_in_a_collective_does_not_spoil_the_end(tmp_path: Any) -> None:
    script = tmp_path / "end.py"
    script.write_text(
        "import threading, time, torsh_runtime as tr\n"
        "tr.init_process_group()\n"
        "if tr.get_rank() == 0:\n"
        "    threading.Thread(target=tr.barrier, daemon=True).start()\n"
        "time.sleep(0.5)\n"
    )
    command = [sys.executable, "-P", "-m", "torshrun", "--nproc-per-node", "2", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_bad_timeouts_and_addresses_are_refused() -> None:
    for timeout in (0, -1, float("inf"), float("nan"), 1e12, "x"):
        with pytest.raises(tr.ConfigError, match="timeout"):
            tr.init_process_group(timeout=timeout, rank=0, world_size=1)
    for address in ("tcp://h:99999", "tcp://h:abc", "tcp://[::1", "tcp://h", "udp://h:1", "x"):
        with pytest.raises(tr.ConfigError, match="init_method"):
            tr.init_process_group(init_method=address, rank=0, world_size=1)
