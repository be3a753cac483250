"""Remote calls while workers die, come back, come and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised, run_forked
from support.ports import free_address
from support.processes import soon
from support.rpc_worlds import (
    PATIENCE,
    SEEN,
    Tracked,
    double,
    error_of,
    forget,
    join,
    keep,
    kill,
    name_here,
    pid_here,
    run_workers,
    touch_and_wait,
    tracked,
    wait_for,
)

import torsh_runtime.rpc as rpc
from torsh_runtime.errors import PeerLost

DEATHS = Path(__file__).parents[2] / "benchmarks" / "rpc_deaths.py"


def is_loss(error: BaseException, worker: int) -> bool:
    """Whether it says which worker was lost, and on which host."""
    host = os.uname().nodename
    is_named = f"worker{worker}" in str(error) and host in str(error)
    return isinstance(error, PeerLost) and error.rank == worker and is_named


def test_random_calls_while_one_of_four_is_killed(request: pytest.FixtureRequest) -> None:
    deaths = 50 if request.config.getoption("--soak") else 3
    command = [sys.executable, str(DEATHS), str(deaths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40 * deaths)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    print(*found, sep="\n")
    assert len(found) == deaths
    assert [each["wrong"] for each in found] == [[]] * deaths
    assert all(each["right"] > 0 and each["told"] is not None for each in found)


def test_callers_of_a_killed_worker_are_told_who_was_lost(tmp_path: Path) -> None:
    never = tmp_path / "never"

    def begun(rank: int) -> Path:
        return tmp_path / f"begun {rank}"

    def body(rank: int) -> Any:
        if rank == 3:
            wait_for(never)
        waiting = rpc.rpc_async("worker3", touch_and_wait, args=(begun(rank), never))
        callbacks: list[Any] = []
        chained = waiting.then(lambda done: callbacks.append(error_of(done.value)))
        first = error_of(waiting.wait)
        chained.wait()
        neighbour = (rank + 1) % 3
        others = [rpc.rpc_sync(f"worker{neighbour}", double, args=(rank,)) for _ in range(20)]
        again = error_of(lambda: rpc.rpc_sync("worker3", double, args=(1,)))
        made = error_of(lambda: rpc.remote("worker3", Tracked).to_here())
        return [is_loss(each, 3) for each in (first, *callbacks, again, made)], others

    def meanwhile(pids: list[int]) -> None:
        wait_for(*map(begun, range(3)))
        kill(pids[3])

    results = run_workers(4, body, meanwhile)
    assert results[:3] == [([True] * 4, [2 * rank] * 20) for rank in range(3)]
    assert isinstance(results[3], Raised)


def test_a_child_of_a_killed_worker_does_not_stand_in_for_it(tmp_path: Path) -> None:
    ready, killed, over = (tmp_path / name for name in ("ready", "killed", "over"))

    def body(rank: int) -> Any:
        if rank == 0:
            wait_for(killed)
            error = error_of(lambda: rpc.rpc_sync("worker1", double, args=(1,)))
            over.touch()
            return type(error), "worker1" in str(error)
        if os.fork() == 0:
            soon(over.exists, PATIENCE)
            os._exit(0)
        ready.touch()
        wait_for(over)
        return None

    def meanwhile(pids: list[int]) -> None:
        wait_for(ready)
        kill(pids[1])
        killed.touch()

    assert run_workers(2, body, meanwhile)[0] == (PeerLost, True)


def test_a_loss_in_a_nested_call_names_who_was_lost(tmp_path: Path) -> None:
    never, begun = tmp_path / "never", tmp_path / "begun"

    def body(rank: int) -> Any:
        if rank == 2:
            wait_for(never)
        if rank == 1:
            return None
        call = "worker2", touch_and_wait, (begun, never)
        error = error_of(lambda: rpc.rpc_sync("worker1", rpc.rpc_sync, args=call))
        return is_loss(error, 2), "worker1" in str(error.__cause__)

    def meanwhile(pids: list[int]) -> None:
        wait_for(begun)
        kill(pids[2])

    assert run_workers(3, body, meanwhile)[0] == (True, True)


def test_who_serves_the_store_may_die(tmp_path: Path) -> None:
    never, killed = tmp_path / "never", tmp_path / "killed"
    begun = [tmp_path / f"begun {rank}" for rank in (1, 2)]

    def body(rank: int) -> Any:
        if rank == 0:
            wait_for(never)
        waiting = rpc.rpc_async("worker0", touch_and_wait, args=(begun[rank - 1], never))
        told = is_loss(error_of(waiting.wait), 0)
        wait_for(killed)
        return told, rpc.rpc_sync(f"worker{3 - rank}", double, args=(rank,))  # the first call there

    def meanwhile(pids: list[int]) -> None:
        wait_for(*begun)
        kill(pids[0])
        killed.touch()

    assert run_workers(3, body, meanwhile)[1:] == [(True, 2), (True, 4)]


def test_a_caller_that_dies_costs_its_callee_nothing(tmp_path: Path) -> None:
    begun, killed = tmp_path / "begun", tmp_path / "killed"

    def body(rank: int) -> Any:
        if rank == 1:
            rpc.rpc_sync("worker0", touch_and_wait, args=(begun, killed))
        elif rank == 2:
            wait_for(killed)
            return [rpc.rpc_sync("worker0", double, args=(number,)) for number in range(10)]
        return None

    def meanwhile(pids: list[int]) -> None:
        wait_for(begun)
        kill(pids[1])
        killed.touch()

    results = run_workers(3, body, meanwhile, num_worker_threads=1)
    assert results[2] == [2 * number for number in range(10)]
    assert results[0] is None


def test_a_worker_that_comes_back_is_found_under_its_name(tmp_path: Path) -> None:
    address, never = free_address(), tmp_path / "never"
    names = ("begun", "dead", "missed", "back", "done")
    begun, dead, missed, back, done = (tmp_path / name for name in names)

    def caller() -> Any:
        waiting = rpc.rpc_async("worker", touch_and_wait, args=(begun, never))
        info = rpc.get_worker_info("worker")
        first = error_of(waiting.wait)
        wait_for(dead)
        absent = error_of(lambda: rpc.rpc_sync("worker", pid_here))
        missed.touch()
        wait_for(back)
        pids = rpc.rpc_sync("worker", pid_here), rpc.rpc_sync(info, pid_here)
        done.touch()
        return isinstance(first, PeerLost), isinstance(absent, RuntimeError), pids

    def body(number: int) -> Any:
        if number == 2:
            wait_for(missed)
        join("caller" if number == 0 else "worker", min(number, 1), address)
        if number == 0:
            wait_for_worker("worker")
            result = caller()
        else:
            (back if number == 2 else tmp_path / "first").touch()
            wait_for(done)
            result = os.getpid()
        rpc.shutdown()
        return result

    def meanwhile(pids: list[int]) -> None:
        wait_for(begun)
        kill(pids[1])
        os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)
        dead.touch()

    results = run_forked(3, body, meanwhile)
    assert results[0] == (True, True, (results[2], results[2]))


def wait_for_worker(name: str) -> None:
    """Until it has joined."""
    assert soon(lambda: name in [info.name for info in rpc.get_worker_infos()], PATIENCE)


def test_workers_come_and_go(tmp_path: Path) -> None:
    address, asked, last = free_address(), tmp_path / "asked", tmp_path / "last"

    def body(number: int) -> Any:
        if number:
            join(f"guest{number}", -1, address)
            wait_for_worker("host")  # it serves the store before it can be found there
            found = rpc.rpc_sync("host", double, args=(number,)), rpc.get_worker_info().id
            wait_for(asked if number == 1 else last)
            rpc.shutdown()
            return found
        join("host", 0, address)
        wait_for_worker("guest1")
        wait_for_worker("guest2")
        names = [rpc.rpc_sync(info, name_here) for info in rpc.get_worker_infos()]
        asked.touch()
        assert soon(lambda: len(rpc.get_worker_infos()) == 2, PATIENCE)
        gone = error_of(lambda: rpc.rpc_sync("guest1", name_here))
        there = rpc.rpc_sync("guest2", name_here)
        last.touch()
        rpc.shutdown()
        return sorted(names), "guest1" in str(gone), there

    host, *guests = run_forked(3, body)
    assert host == (["guest1", "guest2", "host"], True, "guest2")
    assert [doubled for doubled, _ in guests] == [2, 4]
    assert len({number for _, number in guests} | {0}) == 3


def test_references_of_dead_and_departed_users_are_let_go(tmp_path: Path) -> None:
    held, gone = tmp_path / "held", tmp_path / "gone"

    def owner() -> Any:
        names = "dead", "kept", "passed on"
        references = {name: rpc.RRef(Tracked(name)) for name in names}
        rpc.rpc_sync("worker1", keep, args=(references["dead"],))
        rpc.rpc_sync("worker2", keep, args=(references["kept"],))
        rpc.rpc_sync("worker1", pass_on, args=(references["passed on"],))
        references.clear()
        before = tracked()
        held.touch()
        wait_for(gone)
        assert soon(lambda: tracked() == ["kept", "passed on"], PATIENCE), tracked()
        using = rpc.rpc_sync("worker2", use_kept)
        rpc.rpc_sync("worker2", forget)
        return before, using, soon(lambda: tracked() == [], PATIENCE)

    def body(rank: int) -> Any:
        if rank == 1:
            wait_for(tmp_path / "never")
        return owner() if rank == 0 else None

    def meanwhile(pids: list[int]) -> None:
        wait_for(held)
        kill(pids[1])
        gone.touch()

    names = ["dead", "kept", "passed on"]
    assert run_workers(3, body, meanwhile)[0] == (names, ["kept", "passed on"], True)


def pass_on(reference: Any) -> None:
    rpc.rpc_sync("worker2", keep, args=(reference,))


def use_kept() -> list[str]:
    return [each.rpc_sync().who() for each in SEEN]


def test_references_of_a_dead_owner_say_who_was_lost(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def body(rank: int) -> Any:
        if rank == 1:
            wait_for(tmp_path / "never")
        reference = rpc.remote("worker1", Tracked, args=("x",))
        name = reference.to_here().name
        waiting = reference.rpc_async().who
        made.touch()
        assert soon(lambda: is_lost(waiting), PATIENCE)
        calls = (
            reference.to_here,
            reference.rpc_sync().who,
            lambda: reference.remote().who().to_here(),
        )
        errors = [error_of(call) for call in calls]
        return name, [is_loss(error, 1) for error in errors], reference.owner_name()

    def meanwhile(pids: list[int]) -> None:
        wait_for(made)
        kill(pids[1])

    assert run_workers(2, body, meanwhile)[0] == ("x", [True] * 3, "worker1")


def is_lost(call: Any) -> bool:
    try:
        call().wait()
    except PeerLost:
        return True
    return False


def test_many_threads_that_meet_a_death_do_not_keep_references(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def body(rank: int) -> Any:
        if rank == 1:
            wait_for(tmp_path / "never")
        reference = rpc.RRef(Tracked("kept"))
        rpc.rpc_sync("worker1", keep, args=(reference,))
        del reference
        lost: list[bool] = []

        def call_on() -> None:
            while not is_lost(lambda: rpc.rpc_async("worker1", double, args=(1,))):
                pass
            lost.append(True)

        threads = [threading.Thread(target=call_on) for _ in range(8)]
        for thread in threads:
            thread.start()
        ready.touch()
        for thread in threads:
            thread.join()
        return len(lost), soon(lambda: tracked() == [], PATIENCE)

    def meanwhile(pids: list[int]) -> None:
        wait_for(ready)
        kill(pids[1])

    assert run_workers(2, body, meanwhile)[0] == (8, True)
