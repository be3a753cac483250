"""Signals, threads and other interruptions in every kind of wait."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import Gate
from support.hosts import Host, needs_hosts, plugged, run_on_hosts
from support.ports import free_address
from support.processes import soon
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime import job
from torsh_runtime.comm.default import default_group

PATIENCE = 30.0
LATE = 0.6
"""Seconds by which a rank is late, which is interrupted meanwhile or whose peers are."""

World = Callable[[int, Callable[[int], Any]], list[Any]]


@pytest.fixture(
    params=["node", pytest.param("nodes", marks=[needs_hosts, pytest.mark.netns])],
)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """run(ranks, body): in processes of one host, or of two."""
    monkeypatch.setattr(job, "_FAREWELL", 0.1)  # few here take leave as they should
    if request.param == "node":
        yield lambda ranks, body: run_processes(ranks, body, PATIENCE)
        return
    with plugged(2) as hosts:
        yield lambda ranks, body: run_on_hosts(spread(hosts, ranks), body, PATIENCE)


def spread(hosts: list[Host], ranks: int) -> list[Host]:
    return [hosts[rank * 2 // ranks] for rank in range(ranks)]


# --- signals ---


def receive(rank: int) -> None:
    tr.recv(np.zeros(3), 1, tag=5)


def receive_from_any(rank: int) -> None:
    tr.recv(np.zeros(3), tag=5)


def receive_later(rank: int) -> None:
    work = tr.irecv(np.zeros(3), 1, tag=5)
    work.wait()


def send_much(rank: int) -> None:
    tr.send(np.zeros(10_000_000), 1, tag=6)


def reduce_little(rank: int) -> None:
    tr.all_reduce(np.zeros(3))


def reduce_much(rank: int) -> None:
    tr.all_reduce(np.zeros(1_000_000))


def reduce_later(rank: int) -> None:
    work = tr.all_reduce(np.zeros(3), async_op=True)
    assert work is not None
    work.wait()


def reduce_behind_another(rank: int) -> None:
    tr.all_reduce(np.zeros(3), async_op=True)
    tr.all_reduce(np.zeros(3))


def scatter(rank: int) -> None:
    tr.scatter(np.zeros(3), [np.zeros(3)] * 2 if rank == 1 else None, 1)


def come_together(rank: int) -> None:
    tr.monitored_barrier(timeout=PATIENCE)


def make_a_group(rank: int) -> None:
    tr.new_group()


WAITS = [
    receive, receive_from_any, receive_later, send_much, reduce_little, reduce_much, reduce_later,
    reduce_behind_another, scatter, come_together,
]  # fmt: skip


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_every_wait_and_tells_the_peers(
    world: World, wait: Callable[[int], None]
) -> None:
    def body(rank: int) -> tuple[str, float]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        begun = time.monotonic()
        if rank == 0:
            tr.recv(np.zeros(1), 1, tag=98)  # an abort may overtake the end of a barrier
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                wait(rank)
            return "interrupted", time.monotonic() - begun
        tr.send(np.zeros(1), 0, tag=98)
        time.sleep(LATE / 2)
        with pytest.raises(tr.CommAborted) as caught:
            tr.recv(np.zeros(1), 0, tag=99)  # what rank 0 never sends
        return str(caught.value), time.monotonic() - begun

    results = world(2, body)
    assert results[0][0] == "interrupted", results
    assert "rank 0" in results[1][0]
    assert all(seconds < PATIENCE / 2 for _, seconds in results)


def test_ctrl_c_while_the_others_have_not_come(world: World) -> None:
    def body(rank: int) -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tr.barrier()
        if rank == 1:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                tr.new_group()
            tr.barrier()  # the other groups are as good as before
            return ""
        time.sleep(LATE)
        with pytest.raises(tr.CommError) as caught:
            tr.new_group()
        tr.barrier()
        return str(caught.value)

    text = world(2, body)[0]
    assert "rank 1 gave up joining the group: KeyboardInterrupt" in text


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("wait", [receive, send_much, reduce_later, reduce_much])
def test_a_handler_may_leave_the_group(
    world: World, wait: Callable[[int], None], goes_on: bool
) -> None:
    def leave(*_: object) -> None:
        default_group().close()
        if not goes_on:
            raise SystemExit(3)

    def body(rank: int) -> str:
        tr.barrier()
        if rank == 0:
            signal.signal(signal.SIGTERM, leave)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            with pytest.raises(tr.CommError if goes_on else SystemExit):
                wait(rank)
            return "left"
        time.sleep(LATE / 2)
        with pytest.raises((tr.CommAborted, tr.PeerLost)) as caught:
            tr.recv(np.zeros(1), 0, tag=99)
        return str(caught.value)

    results = world(2, body)
    assert results[0] == "left", results
    assert "rank 0" in results[1]


# --- threads, forks, leaving early ---


def test_a_group_may_be_left_with_work_under_way(world: World) -> None:
    def body(rank: int) -> list[str]:
        works = [tr.irecv(np.zeros(3), 1 - rank, tag=tag) for tag in range(3)]
        if rank == 0:
            tr.recv(np.zeros(1), 1, tag=9)  # an abort may overtake the end of a barrier
            works += [default_group().all_reduce(np.zeros(9), async_op=True) for _ in range(3)]
        else:
            tr.send(np.zeros(1), 0, tag=9)
            time.sleep(LATE / 2)
        default_group().close()
        for work in works:
            with pytest.raises(tr.CommError):
                work.wait()
        return [type(work.exception()).__name__ for work in works]

    for kinds in world(2, body):
        assert set(kinds) <= {"CommAborted", "PeerLost"}


def test_a_thread_that_waits_notices_that_another_leaves(world: World) -> None:
    def body(rank: int) -> str:
        tr.barrier()
        found: list[BaseException] = []

        def wait() -> None:
            try:
                tr.recv(np.zeros(3), 1 - rank, group=group)
            except tr.CommError as error:
                found.append(error)

        group = default_group()
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        group.close()
        thread.join(PATIENCE)
        return type(found[0]).__name__ if found else "hangs"

    assert set(world(2, body)) <= {"CommAborted", "PeerLost"}


def test_threads_of_the_library_take_no_signals(world: World) -> None:
    def tasks() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    def takes_interrupts(task: str) -> bool:
        file = Path(f"/proc/self/task/{task}/status")
        assert soon(lambda: "S (sleeping)" in file.read_text(), PATIENCE)  # it has begun
        status = file.read_text()
        blocked = int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)
        return not blocked & 1 << (signal.SIGINT - 1)

    def body(rank: int) -> list[bool]:
        before = tasks()
        reduced = tr.all_reduce(np.zeros(3), async_op=True)
        got = tr.irecv(np.zeros(3), 1 - rank)
        found = [takes_interrupts(task) for task in tasks() - before]
        tr.barrier()
        tr.send(np.zeros(3), 1 - rank)
        assert reduced is not None
        reduced.wait()
        got.wait()
        return found

    assert world(2, body) == [[False, False]] * 2


@contextmanager
def without_threads() -> Iterator[None]:
    """Within the block no thread can be started."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, is_over = resource.getrlimit(resource.RLIMIT_AS), threading.Event()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))
    with suppress(RuntimeError):  # until the stacks that are left from others are used up
        while True:
            threading.Thread(target=is_over.wait).start()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        is_over.set()


@pytest.mark.parametrize(
    "begin",
    [
        lambda: tr.all_reduce(np.zeros(3), async_op=True),
        lambda: tr.irecv(np.zeros(3), 0),
    ],
)
def test_a_rank_that_gets_no_thread_ends_the_group(
    world: World, begin: Callable[[], object]
) -> None:
    def body(rank: int) -> str:
        tr.barrier()
        if rank == 1:
            with without_threads(), pytest.raises(RuntimeError, match="temporarily unavailable"):
                begin()
        with pytest.raises(tr.CommAborted, match="rank 1 aborted"):
            tr.all_reduce(np.zeros(3))
        return "told"

    assert world(2, body) == ["told"] * 2


def test_forks_do_not_disturb_the_ranks(world: World) -> None:
    """They come, hold what they have inherited, and go, by any way."""

    def body(rank: int) -> float:
        group, array, children = default_group(), np.zeros(50_000), []
        for turn in range(12):
            work = tr.all_reduce(array, async_op=True)
            child = os.fork()
            if child == 0:
                if turn % 3 == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                with suppress(tr.CommAborted):
                    group.close() if turn % 3 == 1 else group.barrier()
                os._exit(0)
            children.append(child)
            assert work is not None
            work.wait()
            array += 1
        tr.barrier()
        statuses = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children]
        assert statuses == [-signal.SIGKILL, 0, 0] * 4
        return float(array[0])

    assert len(set(world(3, body))) == 1


def test_a_fork_that_lives_on_hides_no_death(world: World, tmp_path: Path) -> None:
    """It lives until the death is noticed, or nobody could notice it any more."""
    noticed = tmp_path / "noticed"

    def live_on() -> None:
        until = time.monotonic() + 2 * PATIENCE
        while not noticed.exists() and time.monotonic() < until:
            time.sleep(0.01)
        os._exit(0)

    def body(rank: int) -> str:
        tr.barrier()
        if rank == 1:
            if os.fork() == 0:
                live_on()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            with pytest.raises(tr.PeerLost) as caught:
                tr.all_reduce(np.zeros(3))
        finally:
            noticed.touch()
        return f"{caught.value.rank}"

    assert world(2, body)[0] == "1"


def test_the_monitored_barrier_names_those_that_are_missing(world: World) -> None:
    def body(rank: int) -> tuple[int, ...]:
        group = tr.new_group()
        if rank in (1, 3):
            time.sleep(2 * LATE)
        with pytest.raises(tr.CommTimeout) as caught:
            tr.monitored_barrier(group, timeout=LATE, wait_all_ranks=True)
        return caught.value.missing

    assert world(4, body) == [(1, 3)] * 4


def test_legal_calls_that_differ_are_no_mismatch(world: World) -> None:
    def body(rank: int) -> None:
        group, ranks = default_group(), 3
        for sizes in ([0, 1, 2], [50_000, 0, 7], [300_000, 300_001, 1]):
            parts = [np.empty(size) for size in sizes]
            group.all_gather(parts, np.full(sizes[rank], rank, float))
            assert all((part == peer).all() for peer, part in enumerate(parts))
            part = np.empty(sizes[rank])
            group.reduce_scatter(part, [np.ones(size) for size in sizes])
            assert (part == ranks).all()
            got = [np.empty(sizes[peer] + rank) for peer in range(ranks)]
            group.all_to_all(got, [np.full(sizes[rank] + p, rank, float) for p in range(ranks)])
            assert all((each == peer).all() for peer, each in enumerate(got))
        strided = np.ones((6, 4))[:, ::2] if rank == 1 else np.ones((6, 2), order="F")
        group.all_reduce(strided)
        assert (strided == ranks).all()
        if rank == 0:
            group.send(np.ones((2, 3)), 1)
        elif rank == 1:
            row = np.zeros(6)
            group.recv(row, 0)
            assert (row == 1).all()
        group.barrier()

    assert world(3, body) == [None] * 3


# --- strangers ---


@needs_hosts
@pytest.mark.netns
def test_strangers_at_every_door_hurt_nobody() -> None:
    """Where anything listens they say nonsense, or nothing and stay, while groups are made."""

    def body(rank: int) -> float:
        for _ in range(15):
            group, array = tr.new_group(), np.full(1000, rank + 1.0)
            group.all_reduce(array)
            assert (array == 10).all()
            group.close()
        return float(array[0])

    with plugged(3) as hosts, Gate() as over:
        attackers: list[int] = []

        def attack(pids: list[int]) -> None:
            attackers.append(attacker(hosts, over))

        try:
            results = run_on_hosts(spread(hosts[:2], 4), body, PATIENCE, meanwhile=attack)
        finally:
            over.open()
            for pid in attackers:
                os.waitpid(pid, 0)
    assert results == [10.0] * 4


def attacker(hosts: list[Host], over: Gate) -> int:
    """The pid of a process on the third host, which attacks the others until it is over."""
    child = os.fork()
    if child != 0:
        return child
    with suppress(BaseException), ExitStack() as stack:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        hosts[2].enter()
        count = 0
        while not over.wait(1, 0):
            for host in hosts[:2]:
                for port in listening(host):
                    count += 1
                    with suppress(OSError):
                        pester(host, port, count, stack)
    os._exit(0)


def pester(host: Host, port: int, count: int, stack: ExitStack) -> None:
    sock = socket.create_connection((host.ipv4, port), 0.2)
    if count % 3 == 0 and count < 6000:
        stack.enter_context(sock)  # silent
        return
    with sock:
        sock.sendall(os.urandom(1 << count % 17))


def listening(host: Host) -> set[int]:
    """The TCP ports at which something listens there."""
    rows = Path(f"/proc/{host.holder}/net/tcp").read_text().splitlines()[1:]
    fields = [row.split() for row in rows]
    return {int(each[1].partition(":")[2], 16) for each in fields if each[3] == "0A"}


# --- no memory ---


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_FSIZE])
def test_a_lack_of_memory_is_a_clear_error(limit: int) -> None:
    """And where there is enough again a group can be made."""
    addresses = [free_address(), free_address()]

    def body(rank: int) -> str:
        tr.destroy_process_group()
        if limit == resource.RLIMIT_FSIZE:
            resource.setrlimit(limit, (1 << 16, resource.RLIM_INFINITY))
        else:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(limit, (used + (1 << 20), resource.RLIM_INFINITY))
        with pytest.raises((tr.BackendUnavailable, tr.CommError, tr.StoreError)) as caught:
            tr.init_process_group("native", addresses[0], LATE, 2, rank)
        resource.setrlimit(limit, (resource.RLIM_INFINITY,) * 2)
        tr.init_process_group("native", addresses[1], PATIENCE, 2, rank)
        tr.barrier()
        return str(caught.value)

    texts = run_processes(2, body, PATIENCE)
    assert all(isinstance(text, str) for text in texts), texts
    assert "memory" in texts[0]
