"""Groups that become others in place: ProcessGroup.configure()."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.worlds import run_processes

import torsh_runtime as tr
from torsh_runtime.comm.default import default_group
from torsh_runtime.job_group import JobGroup

World = Callable[..., list[Any]]
BRIEFLY = 0.5
"""Seconds, of calls that are to miss a deadline."""


def check(results: list[Any], dead: int = -1) -> list[Any]:
    for rank, result in enumerate(results):
        assert rank == dead or not isinstance(result, Raised), f"rank {rank}: {result.error.trace}"
    return results


def summed(group: tr.ProcessGroup | None = None) -> float:
    """What an all_reduce of ones gives: the number of ranks."""
    value = np.ones(1)
    tr.all_reduce(value, group=group)
    return float(value[0])


def become(rank: int, world_size: int, quorum_id: int, timeout: float | None = None) -> None:
    """The default group."""
    default_group().configure(tr.get_store(), "", rank, world_size, quorum_id, timeout)


def test_shrinking_growing_and_other_numbers(process_world: World) -> None:
    def body(rank: int) -> None:
        group = default_group()
        plans = [[2, 0, 1], [1, None, 0], [None, 0, None], [0, 1, 2], [2, 1, 0]]
        for quorum_id, places in enumerate(plans):
            place = places[rank]
            if place is None:
                continue
            size = sum(each is not None for each in places)
            become(place, size, quorum_id)
            assert tr.group.WORLD is group
            assert (tr.get_rank(), tr.get_world_size()) == (place, size)
            assert summed() == size
            whole = np.empty(size, np.int64)
            tr.all_gather_into_tensor(whole, np.array([place]))
            assert whole.tolist() == list(range(size))

    check(process_world(3, body, 30.0))


def test_a_group_that_lost_a_rank_takes_another_process_in() -> None:
    """Survivors take new numbers, and a new process the last one."""
    with tr.serve_store("127.0.0.1:0") as store:
        address = store.endpoint.removeprefix("tcp:")

        def grown(place: int) -> list[Any]:
            default_group().configure(f"{address}/job", "", place, 3, 1, 20)
            said: list[Any] = [None] * 3
            tr.all_gather_single(table := np.empty(3), np.array([place + 1.0]))
            with pytest.raises(tr.ConfigError, match="TORSH_SECRET"):
                tr.all_gather_object(said, place)  # at an address anybody may have come
            return [float(value) for value in table]

        def join() -> list[Any]:
            tr.init_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:1")
            return grown(2)

        def body(rank: int) -> list[Any]:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(tr.PeerLost):
                summed()
            return grown(rank // 2)

        with ThreadPoolExecutor(1) as pool:
            joined = pool.submit(in_a_process, join)
            results = check(run_processes(3, body, 20.0), dead=1)
        assert [results[0], results[2], joined.result()] == [[1, 2, 3]] * 3


def in_a_process(body: Callable[[], Any]) -> Any:
    """What it gives in a fork."""
    context = get_context("fork")
    reader, writer = context.Pipe(False)
    process = context.Process(target=lambda: writer.send(body()))
    process.start()
    writer.close()
    with reader:
        result = reader.recv()
    process.join()
    process.close()
    return result


@pytest.mark.parametrize("kind", ["abort", "timeout", "alive"])
def test_a_group_in_any_state(process_world: World, kind: str) -> None:
    def body(rank: int) -> None:
        if kind == "abort":
            default_group().abort()
        if kind == "timeout":
            time.sleep(2 * BRIEFLY * rank)
            with pytest.raises(tr.CommError):
                tr.monitored_barrier(timeout=BRIEFLY)
        become(1 - rank, 2, 1)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_what_is_under_way_ends_in_whichever_thread(process_world: World) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            works = [tr.irecv(np.empty(3), 1, tag=5), tr.all_reduce(np.ones(9), async_op=True)]
            with ThreadPoolExecutor(4) as pool:
                waits = [pool.submit(work.wait) for work in works if work]
                waits += [pool.submit(summed), pool.submit(become, 0, 2, 1)]
                for wait in waits[:-1]:
                    with pytest.raises(tr.CommAborted):
                        wait.result(20)
                tr.get_store().set("ended", b"")
            assert all(work and work.is_completed() for work in works)
        else:  # which calls none of them
            tr.get_store().wait(["ended"])
            become(1, 2, 1)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_who_needs_a_rank_that_has_become_another_loses_it(process_world: World) -> None:
    """The operation before, which all had called, ends well for everybody."""

    def body(rank: int) -> None:
        array = np.ones(1_000_000)
        tr.broadcast(array, 0)
        if rank == 1:
            with pytest.raises(tr.PeerLost, match="left the group"):
                summed()
        become(rank, 2, 1)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_a_message_of_an_earlier_configuration_is_not_received(process_world: World) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            tr.send(np.full(1, 7.0), 1)
            tr.send_object_list(["old"], 1)
        tr.barrier()
        become(rank, 2, 1)
        if rank == 1:
            room = np.empty(1)
            tr.recv(room, 0)
            assert room[0] == 8
            said = [None]
            tr.recv_object_list(said, 0)
            assert said == ["new"]
        else:
            tr.send(np.full(1, 8.0), 1)
            tr.send_object_list(["new"], 1)
        tr.barrier()

    check(process_world(2, body, 30.0))


def test_objects_are_proved_anew(process_world: World) -> None:
    """Ranks whose counts differ, and who did not go through the same configurations."""

    def body(rank: int) -> None:
        for _ in range(3):
            tr.all_gather_object([None, None, None], rank)
        if rank < 2:
            become(rank, 2, 1)
            tr.all_gather_object([None, None], rank)
        become(rank, 3, 2)
        said: list[Any] = [None, None, None]
        tr.all_gather_object(said, rank)
        assert said == [0, 1, 2]

    check(process_world(3, body, 30.0))


def test_what_was_made_of_the_old_group_refuses_and_is_made_anew(process_world: World) -> None:
    def body(rank: int) -> None:
        pair = tr.new_group([0, 1])
        mesh = tr.init_device_mesh((2, 2), ("dp", "tp"))
        tp = mesh.get_group("tp")
        assert summed(tp) == 2
        become(3 - rank, 4, 1)
        for old in (pair, tp):
            if old.rank >= 0:
                with pytest.raises(tr.CommAborted):
                    summed(old)
        for ask in (lambda: mesh.get_group("dp"), lambda: mesh.flatten().get_group()):
            with pytest.raises(tr.CommAborted, match="configured"):
                ask()
        again = tr.init_device_mesh((2, 2), ("dp", "tp"))
        assert summed(again.get_group("tp")) == 2
        pair = tr.new_group([0, 3])
        assert pair.rank < 0 or summed(pair) == 2
        assert tr.split(rank % 2).world_size == 2
        with pytest.raises(tr.ConfigError, match="configure"):
            tr.shrink_group([tr.get_rank() - 1 if tr.get_rank() else 3])
        tr.barrier()  # rank 0 serves the store

    check(process_world(4, body, 30.0))


def test_an_axis_of_a_mesh_by_itself(process_world: World) -> None:
    """The mesh and the other axes go on as they are."""

    def body(rank: int) -> None:
        mesh = tr.init_device_mesh((2, 2), ("dp", "tp"))
        dp, tp = mesh.get_all_groups()
        store = tr.PrefixStore(f"dp {rank % 2}", tr.get_store())
        dp.configure(store, "", 1 - dp.rank, 2, 1)
        assert mesh["dp"].get_group() is dp
        assert (tr.get_rank(dp), summed(dp), summed(tp), summed()) == (1 - rank // 2, 2, 2, 4)
        value = np.array([float(rank)])
        tr.broadcast(value, 0, dp)  # it counts its ranks by itself
        assert value[0] == 2 + rank % 2
        dp.configure(store, "", 0, 1, 2 + tr.get_rank(dp))
        assert (summed(dp), summed(tp)) == (1, 2)
        assert tr.get_process_group_ranks(dp) == [0]
        tr.barrier()
        tr.destroy_process_group(dp)
        assert summed(tp) == 2

    check(process_world(4, body, 30.0))


def test_shared_memory_and_persistent_operations(process_world: World) -> None:
    def body(rank: int) -> None:
        array = tr.empty_shared(100_000, "float64")
        array[:] = rank + 1
        operation = tr.persistent(tr.all_reduce, array)
        operation.start().wait()
        tr.get_store().barrier("done", 2)
        if rank == 0:
            operation.start()  # which the other never does
        become(1 - rank, 2, 1)
        if rank == 0:
            with pytest.raises(tr.CommAborted):
                operation.wait()
        array[:] = rank + 1  # it is an array like any other now
        operation.start().wait()
        assert (array == 3).all()
        again = tr.empty_shared(100_000, "float64")
        again[:] = 1
        tr.all_reduce(again)
        assert (again == 2).all()

    check(process_world(2, body, 30.0))


@pytest.mark.parametrize("keeper", [None, 1])
def test_memory_that_ranks_have_left_is_used_again_unless_one_still_uses_it(
    process_world: World, keeper: int | None
) -> None:
    def body(rank: int) -> None:
        group = default_group()
        assert isinstance(group, JobGroup)
        group.recovers()
        held = [tr.empty_shared(100_000, "float64")]
        held[0][:] = rank + 5
        tr.all_reduce(held[0])
        held[0][:] = rank + 5
        leave = lambda: None if rank == keeper else held.clear()  # noqa: E731
        group.meet_again(1, leave, rank, group.world_size)
        again = tr.empty_shared(100_000, "float64")
        assert (again == (0 if keeper is not None else rank + 5)).all()
        again[:] = rank + 1
        tr.all_reduce(again)
        assert (again == 3).all()
        assert all((each == rank + 5).all() for each in held)
        group.settle()
        assert not tr.empty_shared(100_000, "float64").any()

    check(process_world(2, body, 30.0))


def test_who_does_not_come_is_named_and_the_group_can_be_configured_again(
    process_world: World,
) -> None:
    def body(rank: int) -> None:
        group = default_group()
        if rank < 2:
            with pytest.raises(tr.CommTimeout) as caught:
                become(rank, 4, 1, BRIEFLY)
            assert (caught.value.op, caught.value.seconds) == ("configure", BRIEFLY)
            assert set(caught.value.missing) <= {2, 3}
            assert caught.value.missing
            with pytest.raises(
                tr.CommAborted, match=r"not configured: .* Call configure\(\) again"
            ):
                summed()
            assert (group.rank, group.world_size) == (rank, 3)
            with pytest.raises(tr.ConfigError, match="quorum_id 1 before"):
                become(rank, 4, 1)
        become(rank, 3, 2)
        assert summed(group) == 3

    check(process_world(3, body, 30.0))


def test_a_rank_that_dies_while_the_others_wait(process_world: World) -> None:
    def body(rank: int) -> Any:
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises((tr.CommTimeout, tr.PeerLost)) as caught:
            become(rank, 3, 1, BRIEFLY)
        become(rank, 2, 2)
        return caught.value.missing, summed()

    results = check(process_world(3, body, 30.0), dead=2)
    assert results[:2] == [((2,), 2.0)] * 2


def test_of_two_threads_the_later_one_counts(process_world: World) -> None:
    def body(rank: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(become, rank, 3, 1)  # nobody is the third
            time.sleep(0.2)
            become(rank, 2, 2)
            with pytest.raises(tr.CommError, match="configure"):
                first.result(20)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_many_threads_at_once(process_world: World) -> None:
    """Whichever order they come in, one counts, and all of them end."""

    def body(rank: int) -> None:
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(become, 0, 1, 10 * rank + each) for each in range(8)]
            errors = [call.exception(20) for call in calls]
        assert None in errors
        assert all(isinstance(each, tr.CommAborted | None) for each in errors)
        assert summed() == 1
        become(rank, 2, 1000)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_abort_ends_a_configure_that_waits(process_world: World) -> None:
    def body(rank: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(become, 0, 2, 10 + rank)
            while tr.get_store().timeout and not call.running():
                time.sleep(0.01)
            time.sleep(0.2)
            default_group().abort()
            with pytest.raises(tr.CommAborted, match=r"abort\(\)"):
                call.result(20)
        become(rank, 2, 1)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_in_a_callback(process_world: World) -> None:
    def body(rank: int) -> None:
        done = threading.Event()
        ended: list[Any] = []

        def call(work: tr.Work) -> None:
            ended.append(work.exception())
            become(1 - rank, 2, 1)
            done.set()

        work = tr.all_reduce(np.ones(3), async_op=True)
        other = tr.irecv(np.empty(1), 1 - rank, tag=9)
        assert work is not None
        work.add_done_callback(call)
        assert done.wait(20)
        with pytest.raises(tr.CommAborted):
            other.wait()
        assert ended == [None]
        assert (tr.get_rank(), summed()) == (1 - rank, 2)

    check(process_world(2, body, 30.0))


def test_in_a_signal_handler_and_within_coalesce(process_world: World) -> None:
    def body(rank: int) -> None:
        heard: list[BaseException] = []

        def handler(*_: object) -> None:
            try:
                become(0, 1, 77)
            except tr.CommAborted as error:
                heard.append(error)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, BRIEFLY / 2)
        with pytest.raises(tr.CommTimeout):
            become(0, 2, 100 + rank, BRIEFLY)
        assert "signal handler" in str(heard[0])
        become(rank, 2, 1)
        with pytest.raises(RuntimeError, match="coalesce"), tr.coalesce():
            become(rank, 2, 2)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_operations_that_another_thread_holds_back_are_of_the_old_group(
    process_world: World,
) -> None:
    def body(rank: int) -> None:
        held, go_on = threading.Event(), threading.Event()

        def hold_back() -> None:
            with tr.coalesce():
                tr.all_reduce(np.ones(3))
                held.set()
                assert go_on.wait(20)

        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(hold_back)
            assert held.wait(20)
            become(rank, 2, 1)
            go_on.set()
            with pytest.raises(tr.CommAborted):
                call.result(20)
        assert summed() == 2

    check(process_world(2, body, 30.0))


def test_what_cannot_be_asked_for(process_world: World) -> None:
    def body(rank: int) -> None:
        for place, size in ((2, 2), (-1, 2), (0, 0)):
            with pytest.raises(tr.ConfigError, match="world_size"):
                become(place, size, 1)
        with pytest.raises(tr.ConfigError, match="not in the group"):
            tr.new_group([1 - rank]).configure(tr.get_store(), "", 0, 1, 2)
        assert summed() == 2  # all of that was found before anything was done
        with pytest.raises(tr.ConfigError, match="store_addr"):
            default_group().configure(7, "", 0, 1, 3)  # type: ignore[arg-type]
        become(rank, 2, 4)
        assert summed() == 2

    check(process_world(2, body, 30.0))


@pytest.mark.parametrize("same", [True, False])
def test_only_who_knows_the_secret_takes_part(monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    secrets = ["ab" * 16, "ab" * 16 if same else "cd" * 16]
    monkeypatch.setenv("TORSH_SECRET", secrets[0])

    def configured(place: int) -> Any:
        os.environ["TORSH_SECRET"] = secrets[place]
        tr.init_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:1")
        try:
            default_group().configure(f"{address}/p", "", place, 2, 1, 10 if same else BRIEFLY)
        except (tr.CommError, tr.StoreError) as error:
            return type(error)
        said = [None, None]
        tr.all_gather_object(said, place)
        return said

    with tr.serve_store("127.0.0.1:0") as store, ThreadPoolExecutor(2) as pool:
        address = store.endpoint.removeprefix("tcp:")
        calls = [pool.submit(in_a_process, partial(configured, place)) for place in range(2)]
        results = [call.result() for call in calls]
    assert results == ([[0, 1]] * 2 if same else [tr.CommTimeout, tr.StoreError])
