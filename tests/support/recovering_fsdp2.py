"""A training of a small transformer that torch's fully_shard() has sharded, and that goes on when
workers are lost: a script for torshrun.

Arguments: the number of steps, and what happens in each round, as what:where:step:rank. `what` is
kill or raise; `where` is one of before, forward (amid it), backward (amid it), between (two
microbatches), vote, half (amid the optimizer's step), or committed.
PAUSE is in the environment: seconds in each step.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

import torsh_runtime as tr
from torsh_runtime.elastic.parts_of_job import Parts

PAUSE = float(os.environ.get("PAUSE", "0"))
WIDTH, LENGTH, WORDS, BATCH = 16, 8, 31, 12


def pass_point(where: str, step: int) -> None:
    number, plans = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[2:]
    what, *rest = plans[number].split(":") if number < len(plans) else [""]
    if rest != [where, str(step), os.environ["RANK"]]:
        return
    if what == "raise":
        raise ValueError(f"this rank is to fail in {where}")
    os.kill(os.getpid(), signal.SIGKILL)


class Amid(torch.autograd.Function):
    """Passes points amid the passes."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        pass_point("forward", present[0])
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        pass_point("backward", present[0])
        return gradients[0]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 2, 33, dropout=0.1, batch_first=True)
            for _ in range(3)
        )
        self.register_buffer("seen", torch.zeros(()))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        self.seen += words.float().mean()
        values = self.words(words)
        for number, block in enumerate(self.blocks):
            values = block(values)
            if number == 1:
                values = Amid.apply(values)
        return self.head(values).clone()


def watch(owner: Any, name: str, where: str) -> None:
    function = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        pass_point(where, present[0])
        return function(*arguments)

    setattr(owner, name, call)


def digest(model: Any, optimizer: Any) -> str:
    """Of the bits of this rank's parts of all parameters and moments."""
    tensors = [*model.parameters(), *model.buffers()]
    for each in model.parameters():
        tensors += optimizer.state[each].values()
    parts = [getattr(each, "_local_tensor", each).detach().numpy() for each in tensors]
    return hashlib.sha256(b"".join(each.tobytes() for each in parts)).hexdigest()[:16]


present = [0]
dist.init_process_group("torsh")
torch.manual_seed(0)
model: Any = Model()
for each in model.blocks:
    fully_shard(each)
fully_shard(model)
assert isinstance(model, FSDPModule)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.98)
data = torch.randint(0, WORDS, (60, LENGTH), generator=torch.Generator().manual_seed(1))
sampler = tr.elastic.ElasticSampler(data, BATCH)
job = tr.elastic.join(model=model, optimizer=optimizer, sampler=sampler, schedule=schedule)
watch(Parts, "agree_on_buffers", "vote")
optimizer.register_step_pre_hook(lambda *_: pass_point("half", present[0]))
rank = dist.get_rank()
print(f"start {rank} {os.getpid()} {job.number}", flush=True)
for step in job.steps(int(sys.argv[1])):
    with step:
        present[0] = step.number
        pass_point("before", step.number)
        inputs = data[step.next(sampler)]
        for number, part in enumerate(inputs.tensor_split(2)):
            model.set_requires_gradient_sync(number == 1)
            loss = torch.nn.functional.cross_entropy(model(part).mT, part.roll(1, 1))
            loss.backward()
            pass_point("between" if number == 0 else "after", step.number)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        time.sleep(PAUSE)
        step.commit()
        schedule.step()
        print("step", step.number, loss.item(), norm.full_tensor().item(), flush=True)
        pass_point("committed", step.number)
print(f"end {rank} {os.getpid()} {digest(model, optimizer)}")
dist.destroy_process_group()
