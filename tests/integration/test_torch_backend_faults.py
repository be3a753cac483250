"""What goes wrong on the torch.distributed backend "torsh" ends in an error that says what."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.launchers import Bench
from support.torch_ranks import passed, run_ranks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

DDP = """
import torch, torch.distributed as dist
import torsh_runtime.integrations.torch
dist.init_process_group("torsh")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(3):
    model(torch.ones(2, 4) * rank).sum().backward()
    if restart == 0 and rank == 1 and step == 1:
        os.kill(os.getpid(), 9)
print("gradient", model.module.bias.grad.tolist())
dist.destroy_process_group()
"""


def killed(rank: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(rank: int, before_last: Any) -> None:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(3):
        if step == 2:
            before_last(rank)
        model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize("culprit", [0, 2])
def test_a_killed_rank_ends_the_step_of_the_others_with_its_name(culprit: int) -> None:
    results = run_ranks(3, lambda rank: train(rank, lambda r: killed(r) if r == culprit else None))
    for rank, result in enumerate(results):
        if rank == culprit:
            assert str(result.error) == "killed by SIGKILL"
        else:
            assert result.error.kind == "PeerLost"
            assert f"rank {culprit} was lost during all_reduce" in result.error.text


def test_a_killed_rank_ends_a_step_whose_operations_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)  # as on two nodes
    first, _ = run_ranks(2, lambda rank: train(rank, lambda r: killed(r) if r == 1 else None))
    assert first.error.kind in ("RuntimeError", "PeerLost")
    assert "rank 1 of the group was lost during all_reduce" in first.error.text  # both are rank 0


def test_a_lost_rank_fails_the_futures_of_an_asynchronous_operation() -> None:
    def body(rank: int) -> str:
        import torch
        import torch.distributed as dist

        if rank == 1:
            killed(rank)
        work = dist.all_reduce(torch.ones(8), async_op=True)
        with pytest.raises(RuntimeError, match="rank 1 was lost"):
            work.get_future().wait()
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(RuntimeError, match="rank 1 was lost"):
            work.wait()
        return type(work.exception()).__name__

    error, victim = run_ranks(2, body)
    assert error == "PeerLost"
    assert str(victim.error) == "killed by SIGKILL"


def test_ranks_that_disagree_are_both_named() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(4 + rank))

    for result in run_ranks(2, body):
        assert result.error.kind == "CommMismatch"
        assert "rank 0 called all_reduce(float32[4], SUM)" in result.error.text
        assert "rank 1 called all_reduce(float32[5], SUM)" in result.error.text


def test_a_barrier_names_the_ranks_that_did_not_come() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        if rank == 1:
            time.sleep(1.5)
        dist.monitored_barrier(timeout=timedelta(seconds=0.5))

    first, late, third = run_ranks(3, body)
    for result in (first, third):
        assert result.error.kind == "CommTimeout"
        assert "waiting for rank(s) 1" in result.error.text
    assert isinstance(late, Raised)


def test_the_timeout_of_a_group_can_be_set() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        store = dist.group.WORLD.get_group_store()
        if rank == 1:
            store.wait(["over"])
            return
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.3))
        try:
            dist.all_reduce(torch.ones(1))
        finally:
            store.set("over", "")

    result, _ = run_ranks(2, body)
    assert result.error.kind == "CommTimeout"
    assert "waiting for rank(s) 1" in result.error.text


def test_a_work_that_takes_longer_than_one_waits_goes_on() -> None:
    def body(rank: int) -> float:
        import torch
        import torch.distributed as dist

        if rank == 1:
            time.sleep(1.0)
        tensor = torch.ones(4)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            with pytest.raises(RuntimeError, match="still under way"):
                work.wait(timedelta(seconds=0.1))
        work.wait(timedelta(seconds=20))
        return tensor[0].item()

    assert passed(run_ranks(2, body)) == [2.0, 2.0]


def test_a_rank_that_never_comes_is_named() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        ranks = dist.new_group([0], timeout=timedelta(seconds=5))
        assert ranks is not None
        if rank == 1:
            return
        from torsh_runtime.backends.native.backend import NativeBackend
        from torsh_runtime.integrations.torch.store import TorchStore

        store = TorchStore(dist.group.WORLD.get_group_store()).scoped("other/")
        NativeBackend.connect(store, 0, 2, 0.5)

    result, _ = run_ranks(2, body)
    assert result.error.kind == "CommTimeout"
    assert "waiting for rank(s) 1" in result.error.text


def test_a_group_can_be_made_again_after_a_failure() -> None:
    def body(rank: int) -> float:
        import torch
        import torch.distributed as dist

        group = dist.new_group([0, 1])
        with pytest.raises(RuntimeError, match="disagree"):
            dist.all_reduce(torch.ones(4 + rank), group=group)
        dist.destroy_process_group(group)
        again = dist.new_group([0, 1])
        dist.all_reduce(tensor := torch.ones(4), group=again)
        return tensor[0].item()

    assert passed(run_ranks(2, body)) == [2.0, 2.0]


def test_an_aborted_group_ends_what_the_others_wait_for() -> None:
    def body(rank: int) -> str:
        import torch
        import torch.distributed as dist

        if rank == 0:
            dist.distributed_c10d._abort_process_group()
            return "aborted"
        with pytest.raises(RuntimeError, match="rank 0 aborted the group"):
            dist.all_reduce(torch.ones(4))
        return "told"

    assert passed(run_ranks(2, body)) == ["aborted", "told"]


def test_tensors_that_it_cannot_take_are_refused_before_anything_happens() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

        with FakeTensorMode():
            fake = torch.ones(4)
        mesh = init_device_mesh("cpu", (1,))
        for refused, error in (
            (fake, TypeError),
            (distribute_tensor(torch.ones(4), mesh, [Replicate()]), TypeError),
            (torch.empty(4, device="meta"), TypeError),
            (torch.ones(4, dtype=torch.complex64).conj().imag, TypeError),
            (torch.ones(1, dtype=torch.complex64).conj().imag, TypeError),
            (torch._neg_view(torch.ones(4)), TypeError),
            (torch.eye(4).to_sparse_csr(), NotImplementedError),
            (torch.ones(4).to(torch.float8_e5m2), TypeError),
        ):
            with pytest.raises(error):
                dist.all_reduce(refused)
        with pytest.raises(ValueError, match="lazy conjugate"):
            dist.group.WORLD.broadcast(torch.ones(4, dtype=torch.complex64).conj(), 0)
        with pytest.raises(ValueError, match="2 split sizes"):
            dist.group.WORLD.all_to_all_single(torch.ones(2), torch.ones(2), [1, 1], [1]).wait()
        with pytest.raises(ValueError, match="one tensor per rank"):
            dist.group.WORLD.allreduce([torch.ones(2), torch.ones(2)])
        with pytest.raises(TypeError):
            dist.all_reduce(torch.ones(4), dist.ReduceOp.BAND)
        dist.all_reduce(torch.ones(4))

    passed(run_ranks(1, body))


def test_under_torshrun_a_script_recovers(tmp_path: Path) -> None:
    run = Bench(tmp_path).run(
        "torshrun", "--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=5", "probe.py",
        then=DDP,
    )  # fmt: skip
    assert run.code == 0, run.err
    gradients = [line for line in run.out.splitlines() if "gradient" in line]
    assert sorted(gradients) == [f"[{rank}] gradient [6.0, 6.0, 6.0, 6.0]" for rank in range(2)]
    assert "rank 1 most likely failed first" in run.err


@pytest.mark.parametrize(
    ("environ", "tuned"),
    [({}, True), ({"TORSH_TUNE_ALLOCATOR": "0"}, False), ({"MALLOC_TOP_PAD_": "0"}, False)],
)
def test_the_allocator_is_tuned_unless_told_otherwise(environ: dict[str, str], tuned: bool) -> None:
    code = (
        "from torsh_runtime.integrations.torch.allocator import tune_allocator\n"
        "print(tune_allocator())"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", code], env=os.environ | environ, capture_output=True, text=True
    )
    assert said.stdout == f"{tuned}\n", said.stderr


def test_the_torch_store_as_ours() -> None:
    import torch.distributed as dist

    from torsh_runtime.errors import StoreTimeout
    from torsh_runtime.integrations.torch.store import TorchStore

    store = TorchStore(dist.HashStore()).scoped("here/")
    assert store.get("a") is None
    store.put("a", b"\0\xff")
    assert store.get("a").value == b"\0\xff"
    assert [store.add("n", 2), store.add("n", 3)] == [2, 5]
    assert {key: entry.value for key, entry in store.wait(["a"], 1.0).items()} == {"a": b"\0\xff"}
    with pytest.raises(StoreTimeout, match="has no b, c"):
        store.wait(["b", "a", "c"], 0.05)


def test_a_torch_store_that_has_ended() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        from torsh_runtime.errors import StoreError
        from torsh_runtime.integrations.torch.store import TorchStore

        serving = dist.TCPStore("127.0.0.1", 0, is_master=True)
        client = TorchStore(dist.TCPStore("127.0.0.1", serving.port))
        client.put("a", b"1")
        del serving
        with pytest.raises(StoreError, match="rank 0 as a rule"):
            client.get("a")

    passed(run_ranks(1, body))
