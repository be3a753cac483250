"""Trains with torch's DistributedDataParallel, and imports nothing of torsh.

Arguments are the backend, the number of steps, and up to two times a rank, a step and a place, like
1:5:buckets, in which that rank kills itself. Each rank prints its loss of each step, and all that
it has in the end. PAUSE in the environment is how many seconds a step takes at least, as long as
there is no file FAST in the present directory.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS_SAMPLES, WIDTH = 16, 48
PAUSE = float(os.environ.get("PAUSE", "0"))
PASSED = 4
"""Gradients that are there when a rank is killed within the buckets."""

step = 0


def die(place: str) -> None:
    """Kill this process where it is told to; a file says if that has happened before."""
    own = f"{dist.get_rank()}:{step}:{place}"
    mark = Path("killed_" + own.replace(":", "_"))
    if own in sys.argv and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def network() -> DistributedDataParallel:
    """Return a model whose gradients take several buckets, with buffers and random numbers."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    layers += [torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 1)]
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)


def validate(model: DistributedDataParallel) -> float:
    """Return the mean loss of all ranks, by collectives of the script's own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        loss = model.module(torch.ones(4, WIDTH)).square().mean()
    model.train()
    die("validation")
    everyone = [torch.zeros(()) for _ in range(size)]
    dist.all_gather(everyone, loss)
    found: list[object] = [None] * size
    dist.all_gather_object(found, (rank, step))
    assert found == [(each, step) for each in range(size)]
    told = [step if rank == 0 else None]
    dist.broadcast_object_list(told)
    assert told == [step]
    dist.barrier()
    return float(torch.stack(everyone).mean())


def main() -> None:
    global step
    dist.init_process_group(sys.argv[1])
    rank = dist.get_rank()
    print(f"start {rank} {os.getpid()}")
    model = network()
    passed = 0

    def count(_: torch.Tensor) -> None:
        nonlocal passed
        passed += 1
        if passed == PASSED:
            die("buckets")

    for parameter in model.parameters():
        parameter.register_hook(count)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: die("step"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    torch.manual_seed(rank)
    for step in range(int(sys.argv[2])):
        passed = 0
        inputs = torch.randn(RANKS_SAMPLES, WIDTH)
        die("forward")
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        die("between")
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        time.sleep(0 if Path("FAST").exists() else PAUSE)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        told = validate(model) if step % 3 == 2 else 0.0
        print(f"step {step} {rank} {loss.item()!r} {mean.item()!r} {told!r}")
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print(f"end {rank} {os.getpid()} {digest.hexdigest()[:16]} {torch.rand(()).item()!r}")
    dist.destroy_process_group()


main()
