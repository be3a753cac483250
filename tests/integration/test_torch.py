"""torch.distributed under torshrun, with scripts as they are written for torchrun."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from support.launchers import Bench

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

SHARED = ("--preload=torch._dynamo", "--standbys=0")
"""Options for torshrun to load torch once, and not in each worker."""
EXAMPLE = Path(__file__).parents[2] / "examples/torch_ddp.py"
SUM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([rank + 1.0])
dist.all_reduce(x)
print("attempt", restart, "sum", x.item(), "elastic", dist.is_torchelastic_launched())
if restart == 0 and rank == 1:
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
"""
ENDS_EARLY = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
group = dist.group.WORLD
work = group.allreduce_coalesced([torch.ones(1) for _ in range(3000)])
work.wait()
del work  # so that it is Gloo's thread that lets go of all these tensors
dist.destroy_process_group()  # but group still has the threads
print("done")
"""
RAISE = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise LookupError(f"nothing on rank {rank}")

os.close(2)  # so that only the error file can say it
main()
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.slow
def test_an_unmodified_ddp_script_trains_and_resumes(bench: Bench) -> None:
    pytest.importorskip("sklearn")
    command = ("--nproc-per-node=2", *SHARED, "--rdzv-id=digits", str(EXAMPLE), "--epochs")
    first = bench.run("torshrun", *command, "2")
    assert first.code == 0, first.err
    second = bench.run("torshrun", *command, "4")
    assert second.code == 0, second.err
    assert "[0] resuming after epoch 2\n[0] epoch   3" in second.out
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", first.out + second.out)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 2


def test_a_script_that_is_done_is_not_ended_by_threads_of_gloo(bench: Bench) -> None:
    for _ in range(3):  # without the start hook four of five end by SIGABRT
        found = bench.run("torshrun", "--nproc-per-node=2", "probe.py", then=ENDS_EARLY)
        assert found.code == 0, found.err
        assert found.out.count("done") == 2


def test_a_group_meets_again_after_a_failure(bench: Bench) -> None:
    options = ("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=5")
    run = bench.run("torshrun", *options, "probe.py", then=SUM)
    assert run.code == 0, run.err
    said = sorted(line for line in run.out.splitlines() if "attempt 1" in line)
    assert said == [f"[{rank}] attempt 1 sum 3.0 elastic True" for rank in range(2)]
    ports = {key: seen["environ"]["MASTER_PORT"] for key, seen in run.seen.items()}
    assert ports[0, 0] == ports[1, 0]
    assert ports[0, 1] == ports[1, 1]
    assert "rank 1 failed first: exit code 3" in run.err


def test_recorded_errors_are_read(bench: Bench) -> None:
    run = bench.run("torshrun", "probe.py", then=RAISE)
    assert run.code == 1
    assert "LookupError: nothing on rank 0" in run.err


def test_fully_sharded_training_runs(bench: Bench) -> None:
    then = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(3):
    loss = model(torch.full((4, 8), rank + 1.0)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    losses.append(loss.item())
print("fell" if losses[-1] < losses[0] else losses)
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch itself aborts now and then while the interpreter ends
"""
    run = bench.run("torshrun", "--nproc-per-node=2", *SHARED, "probe.py", then=then)
    assert run.code == 0, run.err
    assert sorted(line for line in run.out.splitlines() if "fell" in line) == [
        "[0] fell",
        "[1] fell",
    ]
