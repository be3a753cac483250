"""torch's reconfigure functions (from 2.14 on) on torsh groups; before, the groups' own methods."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.forked import Raised, run_forked
from support.torch_ranks import passed, run_ranks

import torsh_runtime as tr

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
SOON = 10.0
"""Seconds within which a failure is known, far less than the timeouts of the groups."""


def store() -> Any:
    """The default group's present store; take it before the group is reconfigured."""
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


def collected(shared: Any, topic: str, rank: int, ranks: Collection[int]) -> list[str]:
    """This rank's handle put into the store, and those of all these ranks, in their order."""
    import torch.distributed as dist

    shared.set(f"{topic}/{rank}", dist.group.WORLD.get_reconfigure_handle())
    return [shared.get(f"{topic}/{each}").decode() for each in ranks]


def reconfigure(uuid: int, handles: Any, seconds: float | None = None, group: Any = None) -> None:
    """torch's function, or before torch 2.14 the method of the group that it calls."""
    import torch.distributed as dist

    limit = None if seconds is None else timedelta(seconds=seconds)
    if hasattr(dist, "_reconfigure"):
        assert dist._reconfigure(uuid, handles, group, timeout=limit, hints={"any": "thing"}).wait()
        return
    options = SimpleNamespace(uuid=uuid, handles=handles, timeout=limit, hints={})
    assert (group or dist.group.WORLD).reconfigure(options).wait()


def summed(group: Any = None) -> float:
    """What an all_reduce of ones gives: the number of ranks."""
    import torch
    import torch.distributed as dist

    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    return float(value[0])


def test_a_list_orders_the_ranks_and_a_set_is_ordered_alike_everywhere() -> None:
    def body(rank: int) -> int:
        import torch.distributed as dist

        shared, group = store(), dist.group.WORLD
        assert group.supports_reconfigure
        handles = collected(shared, "first", rank, [2, 0, 1])
        reconfigure(1, handles)
        assert dist.group.WORLD is group
        assert (dist.get_rank(), summed()) == ((rank + 1) % 3, 3)
        assert dist.get_process_group_ranks(group) == [0, 1, 2]
        assert group._get_sequence_number_for_group() == 1
        reconfigure(2, handles[::-1])  # those of before, which need the store
        assert (dist.get_rank(), summed()) == (2 - (rank + 1) % 3, 3)
        reconfigure(3, set(collected(shared, "third", rank, range(3))))
        assert summed() == 3
        ranks: list[Any] = [None] * 3
        dist.all_gather_object(ranks, dist.get_rank())
        assert ranks == [0, 1, 2]
        pair = dist.new_group([0, 2])
        if dist.get_rank() != 1:
            assert summed(pair) == 2
        return dist.get_rank()

    assert sorted(passed(run_ranks(3, body))) == [0, 1, 2]


def test_ddp_goes_on_with_the_survivors() -> None:
    def body(rank: int) -> list[float]:
        import torch
        import torch.distributed as dist

        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        shared, group = store(), dist.group.WORLD

        def step() -> float:
            layer.zero_grad()
            model(torch.full((1, 4), 1.0 + rank)).sum().backward()
            return float(layer.weight.grad[0, 0])

        handles = collected(shared, "handles", rank, range(3))
        reconfigure(1, handles)
        gradients = [step()]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(tr.PeerLost):
            step()
        assert group.get_error().name == "REMOTE_ERROR"
        reconfigure(2, collected(shared, "again", rank, [0, 2]))
        assert group.get_error().name == "SUCCESS"
        return [*gradients, step()]

    results = run_ranks(3, body)
    assert passed([results[0], results[2]]) == [[2.0, 2.0]] * 2
    assert isinstance(results[1], Raised)


def test_a_new_process_joins(tmp_path: Path) -> None:
    import torch  # noqa: F401  (once, before the ranks are forked)

    def body(number: int) -> tuple[int, float]:
        import torch.distributed as dist

        shared = dist.FileStore(f"{tmp_path}/store", -1)
        is_new = number == 2
        if is_new:
            shared.wait(["two"])
        rank, size = (0, 1) if is_new else (number, 2)
        dist.init_process_group("torsh", store=shared, rank=rank, world_size=size)
        if not is_new:
            reconfigure(1, collected(shared, "two", number, range(2)))
            assert summed() == 2
            shared.set("two", "")
        reconfigure(2, collected(shared, "three", number, [2, 0, 1]), 20.0)
        outcome = dist.get_rank(), summed()
        dist.destroy_process_group()
        return outcome

    assert passed(run_forked(3, body)) == [(1, 3.0), (2, 3.0), (0, 3.0)]


def test_what_is_wrong_is_refused_and_the_group_goes_on() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        shared, group = store(), dist.group.WORLD
        pair = dist.new_group()
        handles = collected(shared, "handles", rank, range(2))
        who = f"process {os.getpid()} on "
        refusals: list[tuple[Any, str]] = [
            ([], f"none of the 0 .* {who}"),
            (handles[1 - rank : 2 - rank], f"none of the 1 .* {who}"),
            ([*handles, handles[0]], "must be unique: 0 and 2 are both of process"),
            ([*handles, "gloo:0:-1:0:"], "handle 2 is not one of a torsh group: 'gloo:0"),
            ([*handles, "torsh:[1]"], "handle 2 is not one"),
            ([*handles, "torsh:" + "[" * 100_000], "handle 2 is not one"),
            ([handles[0], pair.get_reconfigure_handle()], "is of the group"),
        ]
        for wrong, words in refusals:
            with pytest.raises(RuntimeError, match=words) as caught:
                reconfigure(1, wrong)
            assert isinstance(caught.value, tr.ConfigError)
        assert summed() == 2
        reconfigure(1, handles)
        with pytest.raises(RuntimeError, match="uuid 1 was already used by this process"):
            reconfigure(1, handles)
        assert (summed(), group.get_error().name) == (2, "SUCCESS")

    passed(run_ranks(2, body))


def test_different_members_are_told_of_each_other() -> None:
    def body(rank: int) -> float:
        shared = store()
        handles = collected(shared, "handles", rank, range(3))
        given = handles[:2] if rank == 0 else handles
        if rank:
            shared.wait(["begun"])
        else:
            threading.Timer(0.5, shared.set, ["begun", ""]).start()
        began = time.monotonic()
        how = "already" if rank else "also"
        with pytest.raises(
            RuntimeError, match=rf"uuid 7 was {how} used by process \d+ on .* other"
        ):
            reconfigure(7, given)
        waited = time.monotonic() - began
        reconfigure(8, handles)
        assert summed() == 3
        return waited

    assert max(passed(run_ranks(3, body))) < SOON


@pytest.mark.parametrize("both_first", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_the_order_of_the_members_is_compared_too(is_known: bool, both_first: bool) -> None:
    def body(rank: int) -> float:
        shared = store()
        if is_known:
            reconfigure(1, collected(shared, "first", rank, range(2)))
        handles = collected(shared, "handles", rank, range(2))
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"uuid 2 was (already|also) used by .* order"):
            reconfigure(2, handles[::-1] if (rank == 0) != both_first else handles)
        return time.monotonic() - began

    assert max(passed(run_ranks(2, body))) < SOON


@pytest.mark.parametrize("is_known", [False, True])
def test_handles_of_processes_that_have_ended(is_known: bool) -> None:
    def body(rank: int) -> float:
        shared = store()
        handles = collected(shared, "handles", rank, range(3))
        if is_known:
            reconfigure(1, handles)
            handles = collected(shared, "again", rank, range(3))
        if rank == 1:
            shared.set("pid", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        pid = int(shared.get("pid"))
        time.sleep(0.3)
        began = time.monotonic()
        with pytest.raises(tr.PeerLost, match=f"rank 1 .*reconfigure: .*process {pid} on") as lost:
            reconfigure(2, handles)
        waited = time.monotonic() - began
        assert lost.value.rank == 1
        reconfigure(3, collected(shared, "survivors", rank, [0, 2]))
        assert summed() == 2
        return waited

    results = run_ranks(3, body)
    assert max(passed([results[0], results[2]])) < SOON


MOMENTS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "before it leaves the old group": lambda at: (at.reconfiguring, "token_of"),
    "before it has met the others": lambda at: (at.reconfiguring.Reconfigurable, "_count_anew"),
    "as it maps their memory": lambda at: (at.backend, "group_of"),
    "before their first round": lambda at: (at.backend.NativeBackend, "_connected"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_rank_is_killed_in_the_middle(moment: str, victim: int, is_known: bool) -> None:
    survivors = [rank for rank in range(3) if rank != victim]

    def body(rank: int) -> float:
        from torsh_runtime.backends.native import backend
        from torsh_runtime.integrations.torch import reconfiguring

        shared = store()
        if is_known:
            reconfigure(1, collected(shared, "first", rank, range(3)))
        handles = collected(shared, "handles", rank, range(3))
        if rank == victim:
            modules = SimpleNamespace(backend=backend, reconfiguring=reconfiguring)
            owner, name = MOMENTS[moment](modules)
            assert hasattr(owner, name)
            setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        began = time.monotonic()
        with pytest.raises(tr.PeerLost) as lost:  # noqa: PT012  (the others may have been ready)
            reconfigure(2, handles)
            summed()
        waited = time.monotonic() - began
        assert lost.value.rank == victim
        reconfigure(3, collected(shared, "survivors", rank, survivors))
        assert summed() == 2
        return waited

    results = run_ranks(3, body)
    assert max(passed([results[rank] for rank in survivors])) < SOON
    assert isinstance(results[victim], Raised)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_rank_is_stopped(is_known: bool) -> None:
    def body(rank: int) -> float:
        import torch.distributed as dist

        shared = store()
        if is_known:
            reconfigure(1, collected(shared, "first", rank, range(3)))
        handles = collected(shared, "handles", rank, range(3))
        if rank == 1:
            shared.set("pid", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            return 0.0
        pid = int(shared.get("pid"))
        began = time.monotonic()
        with pytest.raises(tr.CommTimeout) as late:
            reconfigure(2, handles, 1.5)
        waited = time.monotonic() - began
        assert late.value.missing == (1,)
        assert dist.group.WORLD.get_error().name == "TIMEOUT"
        survivors = collected(shared, "survivors", rank, [0, 2])
        reconfigure(3, survivors)
        assert summed() == 2
        if rank == 0:
            assert f"rank 1 is process {pid} on" in str(late.value)
            assert f"`kill -CONT {pid}`" in str(late.value)
            os.kill(pid, signal.SIGCONT)
        return waited

    assert max(passed(run_ranks(3, body))) < SOON


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("is_known", [False, True])
def test_the_rank_that_serves_the_store_is_lost(
    is_known: bool, end: signal.Signals, tmp_path: Path
) -> None:
    import torch  # noqa: F401  (once, before the ranks are forked)

    def body(rank: int) -> float:
        import torch.distributed as dist

        lasting = dist.FileStore(f"{tmp_path}/store", -1)
        if rank == 0:
            shared = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            lasting.set("port", str(shared.port))
        else:
            shared = dist.TCPStore("127.0.0.1", int(lasting.get("port")))
        dist.init_process_group("torsh", store=shared, rank=rank, world_size=3)
        if is_known:
            reconfigure(1, collected(lasting, "first", rank, range(3)))
        handles = collected(lasting, "handles", rank, range(3))
        if rank == 0:
            lasting.wait(["ready/1", "ready/2"])
            lasting.set("pid", str(os.getpid()))
            os.kill(os.getpid(), end)
            return 0.0
        lasting.set(f"ready/{rank}", "")
        pid = int(lasting.get("pid"))
        time.sleep(0.3)
        began = time.monotonic()
        kind = tr.PeerLost if end == signal.SIGKILL else tr.CommTimeout
        with pytest.raises(kind, match=f"process {pid} on"):
            reconfigure(2, handles, 1.5)
        with pytest.raises(tr.StoreError, match="rank 0 as a rule"):
            reconfigure(3, handles[1:], 1.5)
        waited = time.monotonic() - began
        lasting.set(f"over/{rank}", "")
        lasting.wait(["over/1", "over/2"])
        if rank == 1 and end == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
        return waited

    results = run_forked(3, body)
    assert max(passed(results[1:])) < SOON


def test_abort_wakes_all_and_hooks_are_called_once() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        shared, group = store(), dist.group.WORLD
        called: list[str] = []

        def fails() -> None:
            called.append("fails")
            raise KeyError("a mistake in a hook")

        group.register_abort_hook(1, lambda: called.append("replaced"))
        group.register_abort_hook(1, fails)
        group.register_abort_hook(2, lambda: called.append("second"))
        group.register_abort_hook(3, lambda: called.append("removed"))
        group.unregister_abort_hook(3)
        group.unregister_abort_hook(4)
        for uuid in (1, 2):
            assert called == ["fails", "second"] * (uuid - 1)
            reconfigure(uuid, collected(shared, f"{uuid}", rank, range(3)))
            assert summed() == 3
            if rank == 0:
                shared.wait([f"wait {uuid}/{each}" for each in (1, 2)])
                group.abort()
                group.abort()
            else:
                work = dist.all_reduce(torch.ones(9), async_op=True)
                shared.set(f"wait {uuid}/{rank}", "")
                with pytest.raises(tr.CommAborted, match="rank 0 aborted"):
                    work.wait()
                with pytest.raises(tr.CommAborted):
                    summed()
            shared.set(f"over {uuid}/{rank}", "")
            shared.wait([f"over {uuid}/{each}" for each in range(3)])
            assert group.get_error().name == ("COMM_ERROR" if rank else "SUCCESS")
            deadline = time.monotonic() + SOON
            while len(called) < 2 * uuid and time.monotonic() < deadline:
                time.sleep(0.01)  # of a Work they are called by a thread of the group
        assert called == ["fails", "second"] * 2

    passed(run_ranks(3, body))


def test_a_hook_is_called_for_a_timeout_that_nobody_waits_for() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        shared, group = store(), dist.group.WORLD
        called = threading.Event()
        group.register_abort_hook(0, called.set)
        group.set_timeout(timedelta(seconds=0.5))
        if rank:
            work = dist.all_reduce(torch.ones(4), async_op=True)
            assert called.wait(SOON)
            assert group.get_error().name == "TIMEOUT"
            with pytest.raises(tr.CommTimeout, match="timed out"):
                summed()
            del work
        group.unregister_abort_hook(0)
        group.set_timeout(timedelta(seconds=20))
        shared.set(f"seen/{rank}", "")
        shared.wait(["seen/0", "seen/1"])
        reconfigure(1, collected(shared, "again", rank, range(2)))
        assert summed() == 2

    passed(run_ranks(2, body))


@pytest.mark.parametrize("is_known", [False, True])
def test_abort_ends_a_reconfiguration_under_way(is_known: bool) -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        shared, group = store(), dist.group.WORLD
        if is_known:
            reconfigure(1, collected(shared, "first", rank, range(2)))
        handles = collected(shared, "handles", rank, range(2))
        if rank == 0:
            threading.Timer(0.5, group.abort).start()
            began = time.monotonic()
            with pytest.raises(tr.CommAborted, match=r"reconfigure\(\) was given up: abort"):
                reconfigure(2, handles)
            assert time.monotonic() - began < SOON
            with pytest.raises(tr.CommAborted, match=r"Call reconfigure\(\) again"):
                summed()
            shared.set("ended", "")
        shared.wait(["ended"])
        reconfigure(3, collected(shared, "again", rank, range(2)))
        assert summed() == 2

    passed(run_ranks(2, body))


def test_memory_and_descriptors_stay_even() -> None:
    def body(rank: int) -> None:
        shared = store()

        def used(first: int) -> tuple[int, int]:
            for uuid in range(first, first + 60):
                reconfigure(uuid, collected(shared, f"{uuid}", rank, range(3)))
                assert summed() == 3
            maps = Path("/proc/self/maps").read_text().count("\n")
            return len(os.listdir("/proc/self/fd")), maps

        descriptors, maps = used(0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        later = used(100)
        assert later[0] == descriptors
        assert later[1] <= maps + 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= peak + 1024

    passed(run_ranks(3, body))


def test_a_group_with_a_part_for_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    from torsh_runtime.integrations.torch import patches

    def body(rank: int) -> None:
        import torch.distributed as dist

        patches.put_in_gloos_stead()
        pair = dist.new_group(backend="gloo")
        handles = [pair.get_reconfigure_handle()]
        assert pair.supports_reconfigure
        reconfigure(rank, handles, group=pair)
        assert (pair.name(), summed(pair)) == ("torsh", 1)
        pair.accelerated = object()  # as of "cpu:gloo,cuda:nccl"
        assert not pair.supports_reconfigure
        with pytest.raises(NotImplementedError, match="accelerators"):
            reconfigure(9, handles, group=pair)
        pair.accelerated = None

    passed(run_ranks(2, body))


@pytest.mark.parametrize("name", ["torsh", "gloo"])
def test_a_group_that_begins_without_members(name: str) -> None:
    import torch.distributed as dist

    if not hasattr(dist.distributed_c10d, "_reconfigure"):
        pytest.skip("torch before 2.14 has no enable_reconfigure")

    def body(rank: int) -> None:
        from torsh_runtime.integrations.torch import patches

        dist.destroy_process_group()
        patches.put_in_gloos_stead()
        served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with pytest.raises(tr.ConfigError, match="one backend"):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl",
                store=served,
                rank=0,
                world_size=1,
                enable_reconfigure=True,
            )
        dist.init_process_group(
            name, store=served, rank=rank, world_size=3, enable_reconfigure=True
        )
        assert (dist.get_rank(), dist.get_world_size()) == (rank, 3)
        assert dist._supports_reconfigure()
        assert dist.group.WORLD.is_torsh
        assert dist.group.WORLD.get_error().name == "SUCCESS"
        with pytest.raises(tr.CommAborted, match=r"torch.distributed._reconfigure\(\)"):
            summed()
        reconfigure(5, [dist._get_reconfigure_handle()])
        assert (dist.get_rank(), dist.get_world_size(), summed()) == (0, 1, 1)

    passed(run_ranks(2, body))


def test_a_handle_knows_whether_its_process_has_ended() -> None:
    from torsh_runtime.integrations.torch.handles import Handle

    own = Handle.here("identity", "group", "", 0)
    assert Handle.unpack(own.pack()) == own
    assert not own.has_ended
    assert own._replace(started="1").has_ended  # another process has got its pid since
    assert not own._replace(machine="another", started="1").has_ended
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert own._replace(pid=child).has_ended
    os.waitpid(child, 0)
    assert own._replace(pid=child).has_ended
