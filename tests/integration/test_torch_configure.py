"""torch's process groups that become others in place, under what holds them."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support.forked import Raised
from support.torch_ranks import passed, run_ranks

import torsh_runtime as tr

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
BRIEFLY = timedelta(seconds=0.5)
"""Of calls that are to miss a deadline."""


def store() -> Any:
    """The default group's first one."""
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


def summed(group: Any = None) -> float:
    """What an all_reduce of ones gives: the number of ranks."""
    import torch
    import torch.distributed as dist

    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    return float(value[0])


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_ddp_goes_on_after_a_peer_was_lost_in_its_backward_pass(
    unused: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overlap:
        for name, value in {"RANK": "0", "WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)  # as on two nodes

    def body(rank: int) -> list[float]:
        import torch
        import torch.distributed as dist

        torch.manual_seed(0)
        layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
        model = torch.nn.parallel.DistributedDataParallel(
            layers, bucket_cap_mb=0.02, find_unused_parameters=unused
        )
        optimiser = torch.optim.SGD(model.parameters(), 0.01)

        def step() -> float:
            optimiser.zero_grad()
            model(torch.full((1, 64), 1.0 + dist.get_rank())).sum().backward()
            optimiser.step()
            return float(layers[-1].bias.grad[0])  # 1 unless it was divided by a wrong number

        def die(_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        group, world = dist.group.WORLD, store()
        gradients = [step(), step()]
        if rank == 1:
            layers[2].weight.register_hook(die)  # of its buckets some have gone by then
        with pytest.raises(tr.PeerLost):
            step()
        with pytest.raises(tr.PeerLost):
            step()
        group.configure(world, "", rank // 2, 2, 1)
        gradients += [step(), step()]
        state = [layers[0].weight.detach().clone()] * 2
        dist.broadcast_object_list(state, 0)
        same = [None, None]
        dist.all_gather_object(same, float(layers[0].weight.sum()))
        assert same[0] == same[1]
        return gradients

    results = run_ranks(3, body)
    assert passed([results[0], results[2]]) == [[1.0] * 4] * 2
    assert isinstance(results[1], Raised)


def test_rank_size_sequence_numbers_and_gradients_are_those_of_the_new_group() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed import _functional_collectives as functional

        layer = torch.nn.Linear(4, 1)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        group, world = dist.group.WORLD, store()
        plans = [[2, 0, 1], [1, None, 0], [None, 0, None], [0, 1, 2]]
        for quorum_id, places in enumerate(plans):
            place, size = places[rank], sum(each is not None for each in places)
            if place is None:
                continue
            dist.all_reduce(torch.ones(1)) if quorum_id == 0 else None
            group.configure(world, "replica", place, size, quorum_id)
            assert dist.group.WORLD is group
            assert (dist.get_rank(), dist.get_world_size()) == (place, size)
            assert dist.get_process_group_ranks(group) == list(range(size))
            assert group._get_sequence_number_for_group() == 0
            assert summed() == size
            model.zero_grad()
            model(torch.full((1, 4), float(place))).sum().backward()
            assert layer.weight.grad[0, 0] == sum(range(size)) / size
            assert functional.all_reduce(torch.ones(1), "sum", group).item() == size

    passed(run_ranks(3, body))


def test_an_axis_of_a_mesh_and_what_is_made_of_the_default_group_afterwards() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dp = mesh.get_group("dp")
        prefix = dist.PrefixStore(f"axis {rank % 2}", store())
        dp.configure(prefix, "", 1 - dp.rank(), 2, 1, global_ranks=[2 + rank % 2, rank % 2])
        assert mesh.get_group("dp") is dp
        assert (dist.get_rank(dp), summed(dp), summed(mesh.get_group("tp"))) == (
            1 - rank // 2,
            2,
            2,
        )
        dp.configure(prefix, "", 0, 1, 2 + dp.rank())
        assert (dist.get_rank(dp), summed(dp)) == (0, 1)
        dist.group.WORLD.configure(store(), "", 3 - rank, 4, 1)
        pair = dist.new_group([0, 3], use_local_synchronization=True)
        if dist.get_rank() in (0, 3):
            assert summed(pair) == 2
        assert summed(mesh.get_group("tp")) == 2  # which is a group by itself
        with pytest.raises(tr.ConfigError, match="global_ranks"):
            dp.configure(prefix, "", 0, 1, 9, global_ranks=[1, 2])

    passed(run_ranks(4, body))


def test_over_a_store_at_an_address() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        if rank == 0:
            served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            store().set("port", str(served.port))
        port = int(store().get("port"))
        group = dist.group.WORLD
        for quorum_id in (1, 2):
            group.configure(f"127.0.0.1:{port}/prefix", "", 1 - rank, 2, quorum_id)
            assert summed() == 2
        group.configure(f"127.0.0.1:{port}/another", "", rank, 2)
        assert summed() == 2
        with pytest.raises(tr.ConfigError, match="host:port/prefix"):
            group.configure("nowhere", "", rank, 2)
        group.configure(store(), "", rank, 2, 5)
        dist.barrier()

    passed(run_ranks(2, body))


_SERVER = """
import os, sys
from torch.distributed import TCPStore
served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(served.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("by_address", [False, True])
def test_over_a_store_whose_server_is_stopped(by_address: bool) -> None:
    def body(rank: int, port: int, server: int) -> None:
        import torch.distributed as dist

        address = f"127.0.0.1:{port}/here"
        given: Any = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        os.kill(server, signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(tr.StoreError):
            dist.group.WORLD.configure(
                address if by_address else given, "", rank, 2, 1, timeout=timedelta(seconds=1)
            )
        assert time.monotonic() - begun < 15

    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            passed(run_ranks(1, lambda rank: body(rank, port, server.pid)))
        finally:
            server.kill()


def test_who_does_not_come_and_a_later_call() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        group, world = dist.group.WORLD, store()
        with pytest.raises(tr.CommTimeout, match="configure timed out") as caught:
            group.configure(world, "", rank, 3, 1, timeout=BRIEFLY)
        assert caught.value.missing == (2,)
        with pytest.raises(tr.CommAborted, match="Call configure"):
            summed()
        with pytest.raises(tr.ConfigError, match="quorum_id 1"):
            group.configure(world, "", rank, 3, 1)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(group.configure, world, "", rank, 3, 2)
            time.sleep(0.2)
            group.configure(world, "", 1 - rank, 2, 3)
            with pytest.raises(tr.CommError):
                first.result(20)
        assert (dist.get_rank(), summed()) == (1 - rank, 2)

    passed(run_ranks(2, body))


def test_works_and_callbacks_of_the_old_group() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        group, world = dist.group.WORLD, store()
        if rank == 0:
            works = [
                dist.irecv(torch.empty(3), 1, tag=5),
                dist.all_reduce(torch.ones(9), async_op=True),  # the other never calls it
            ]
            future = works[1].get_future()
            done = threading.Event()

            def configure(_: object) -> None:
                group.configure(world, "", 0, 2, 2)
                done.set()

            group.configure(world, "", 0, 1, 1)
            for work in works:
                with pytest.raises(tr.CommAborted):
                    work.wait()
            with pytest.raises(RuntimeError, match="CommAborted"):
                future.wait()
            world.set("ended", "")
            future.then(configure)
            assert done.wait(20)
        else:
            world.wait(["ended"])
            group.configure(world, "", 1, 2, 2)
        assert summed() == 2

    passed(run_ranks(2, body))


def test_in_gloos_stead(monkeypatch: pytest.MonkeyPatch) -> None:
    from torsh_runtime.integrations.torch import patches

    def body(rank: int) -> None:
        import torch.distributed as dist

        patches.put_in_gloos_stead()
        pair = dist.new_group(backend="gloo")
        assert pair.name() == "torsh"
        pair.configure(store(), "", 1 - rank, 2, 1, global_ranks=[1, 0])
        assert (dist.get_rank(pair), summed(pair)) == (1 - rank, 2)
        pair.accelerated = object()  # as of "cpu:gloo,cuda:nccl"
        with pytest.raises(NotImplementedError, match="accelerators"):
            pair.configure(store(), "", rank, 2, 2)
        pair.accelerated = None

    passed(run_ranks(2, body))
