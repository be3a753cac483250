"""A training with torch's DistributedDataParallel that goes on when workers are lost: for torshrun.

Arguments: the number of steps, and what happens in each round, as what:where:step:rank. `what` is
kill or raise; `where` is one of forward, buckets (amid the backward pass, where buckets are being
averaged), inner (before a collective of the model's own in its backward pass), between (two
backward passes), own (before a collective of an evaluation), vote (before commit()), half (amid the
optimizer's step), committed (in an evaluation behind the commit).
"""

from __future__ import annotations

import os
import signal
import sys
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torsh_runtime as tr

SAMPLES, BATCH, WIDTH = 60, 12, 40
present = [0]


def pass_point(where: str) -> None:
    number, plans = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[2:]
    planned = plans[number] if number < len(plans) else ""
    what, _, place = planned.partition(":")
    if place != f"{where}:{present[0]}:{os.environ['RANK']}":
        return
    if what == "raise":
        raise ValueError(f"this rank is to fail in {where}")
    os.kill(os.getpid(), signal.SIGKILL)


class Mean(torch.autograd.Function):
    """Averages over ranks in the backward pass."""

    @staticmethod
    def forward(_: Any, values: Any) -> Any:
        return values.clone()

    @staticmethod
    def backward(_: Any, slope: Any) -> Any:
        pass_point("inner")
        slope = slope.contiguous()
        dist.all_reduce(slope, dist.ReduceOp.AVG)
        return slope


class Deep(nn.Module):
    """Has several buckets, buffers, random numbers, and a collective in its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.others = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, values: Any) -> Any:
        values = self.norm(torch.relu(self.first(values)))
        for number, layer in enumerate(self.others):
            values = torch.relu(layer(values))
            if number == 1:
                values = Mean.apply(values)
            if number == 2 and values.requires_grad:
                values.register_hook(lambda _: pass_point("buckets"))
        return self.last(self.drop(values))


class Choosing(nn.Module):
    """Uses one of its layers in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 1) for _ in range(3))

    def forward(self, values: Any) -> Any:
        return self.layers[present[0] % 3](values)


class Words(nn.Module):
    """Has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(SAMPLES, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, indices: Any) -> Any:
        return self.last(self.table(indices))


def made() -> list[DistributedDataParallel]:
    torch.manual_seed(0)
    small = 0.01  # MiB
    nested = nn.Sequential(DistributedDataParallel(nn.Linear(6, 3)), nn.Linear(3, 1))
    return [
        DistributedDataParallel(Deep(), bucket_cap_mb=small),
        DistributedDataParallel(Choosing(), find_unused_parameters=True),
        DistributedDataParallel(Deep(), bucket_cap_mb=small, static_graph=True),
        DistributedDataParallel(Deep(), bucket_cap_mb=small, gradient_as_bucket_view=True),
        DistributedDataParallel(nested),
        DistributedDataParallel(Words()),
    ]


def train(models: list[DistributedDataParallel], values: Any, indices: Any) -> float:
    deep, choosing, _, viewed, *_ = models
    pass_point("forward")
    losses = []
    for model, given in zip(models, (*[values] * 5, indices), strict=True):
        if model is viewed:
            with viewed.no_sync():
                (viewed(given[:2]) ** 2).mean().backward()
        loss = ((model(given) - values.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        if model is choosing:
            pass_point("between")
    total = torch.tensor(losses).sum()
    with torch.no_grad():
        deep.eval()
        total += deep(values).sum()
        pass_point("own")
        dist.all_reduce(total)
        deep.train()
    return float(total)


def digest(models: list[DistributedDataParallel]) -> str:
    state = [each for model in models for each in model.state_dict().values()]
    return sha256(b"".join(each.numpy().tobytes() for each in state)).hexdigest()


def main() -> None:
    dist.init_process_group("torsh")
    rank = dist.get_rank()
    models = made()
    values = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    sampler = tr.elastic.ElasticSampler(SAMPLES, BATCH)
    dense = [each for model in models[:-1] for each in model.parameters()]
    optimizer = torch.optim.SGD(dense, lr=0.01, momentum=0.9)
    sparse = torch.optim.SGD(models[-1].parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.98)
    parts = {"optimizer": optimizer, "sparse": sparse, "sampler": sampler, "schedule": schedule}
    dist.barrier()
    job = tr.elastic.join(model=nn.ModuleList(models), **parts)
    sparse.register_step_pre_hook(lambda *_: pass_point("half"))
    print(f"start {rank} {os.getpid()} {job.number}", flush=True)
    for step in job.steps(int(sys.argv[1])):
        with step:
            present[0] = step.number
            indices = torch.as_tensor(step.next(sampler))
            total = train(models, values[indices], indices)
            pass_point("vote")
            step.commit()
            schedule.step()
            print(f"step {step.number} {rank} {total!r} {digest(models)[:16]}", flush=True)
            models[0].eval()
            pass_point("committed")
            dist.barrier()
            models[0].train()
    print(f"end {rank} {digest(models)}", flush=True)
    dist.destroy_process_group()


main()
