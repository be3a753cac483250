"""A training that goes on when workers are lost: a script for torshrun.

Arguments: "nn" or "torch", maybe followed by -fsdp, -hybrid, -mixed, -fully_shard or -pairs, or by
-own for torch's own group and DistributedDataParallel, the number of steps, and what happens in
each round, as what:where:step:ranks. `what` is kill, stop, raise, exit, flip (a bit of the newest
version of this rank's shard in memory, and then kill), or flip-copy (a bit of the newest version
that this rank keeps for one of the node before, and then wait for a while); `ranks` are numbers
with commas; `where` is one of before, forward, backward, vote (in commit(), before it), half (in
commit(), amid the optimizer's step), committed, or for a rank that heals or gives its state: heal
(then `step` is any number). For shards it is also version or gradients: while these are copied to
the node's memory.
PAUSE is in the environment: seconds in each step, as long as there is no file FAST. BEGIN there is
a file with the state to begin with, and END one for the state at the end.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.elastic import healing, versions
from torsh_runtime.elastic.memory import OWN, TURNS, CommitMemory
from torsh_runtime.elastic.parts_of_job import Parts

SAMPLES, BATCH = 60, 12
PAUSE = float(os.environ.get("PAUSE", "0"))


def planned() -> list[str]:
    """What is to happen in this round; the round's number follows the restarts."""
    number, plans = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[3:]
    return plans[number].split(":") if number < len(plans) else []


def pass_point(where: str, step: int | None = None) -> None:
    what, *rest = planned() or [""]
    if rest[:1] != [where] or os.environ["RANK"] not in rest[2].split(","):
        return
    if step is not None and rest[1] != str(step):
        return
    if what == "raise":
        raise ValueError(f"this rank is to fail in {where}")
    if what == "exit":
        os._exit(3)
    if what == "flip-copy":
        flip(versions._COPIES[OWN])
        print("flipped", flush=True)
        time.sleep(5)
        return
    if what == "flip":
        flip(OWN)
        what = "kill"
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])


def flip(kind: int) -> None:
    """Flip a bit in the newest content of this rank's slots of a kind, once it is whole."""
    time.sleep(0.5)
    kept = CommitMemory.of_agent(os.environ)
    assert kept is not None
    slots = [(turn, kept.own(kind, turn)) for turn in range(TURNS)]
    turn = max((slot[0].sequence, turn) for turn, slot in slots if slot is not None)[1]
    memory = kept.make(kind, turn, 4096)
    memory[memory.nonzero()[0][-1]] ^= 1


def watch(owner: Any, name: str, where: str, present: list[int] | None) -> None:
    """Have this function pass a point first, in the step that is in `present`, or in any."""
    function = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        pass_point(where, present[0] if present else None)
        return function(*arguments)

    setattr(owner, name, call)


def watch_copies(present: list[int]) -> None:
    """Have copies of shards pass a point first, which is named after what is copied."""
    copied = versions._copied

    def call(values: Any, target: Any) -> Iterator[int]:
        is_version = threading.current_thread().name == "torsh-versions"
        pass_point("version" if is_version else "gradients", present[0])
        return copied(values, target)

    versions._copied = call


def wrapped_in(model: Any) -> Any:
    """Wrap a model as the program's first argument says."""
    _, _, way = sys.argv[1].partition("-")
    if way == "fsdp":
        return tr.FullyShardedDataParallel(model, min_num_params=50)
    if way == "hybrid":
        return tr.FullyShardedDataParallel(model, sharding_strategy="hybrid", min_num_params=50)
    if way == "mixed":
        mixed = tr.MixedPrecision(param_dtype="float16", reduce_dtype="float32")
        return tr.FullyShardedDataParallel(model, mixed_precision=mixed, min_num_params=50)
    if way == "own":
        return sys.modules["torch"].nn.parallel.DistributedDataParallel(model)
    if way == "fully_shard":
        tr.fully_shard(model[0])
        return tr.fully_shard(model)
    if way == "pairs":
        for each in (model[0], model):
            tr.fully_shard(each, reshard_after_forward=2)
        return model
    return tr.DistributedDataParallel(model)


def make_nn() -> tuple[Any, Any, Any]:
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.2), nn.Linear(40, 1))
    wrapped = wrapped_in(model)
    return wrapped, optim.AdamW(wrapped.parameters(), lr=0.01), nn.Tensor


def make_torch() -> tuple[Any, Any, Any]:
    import torch

    class Centred(torch.nn.Module):
        """Has a buffer for which each forward pass puts another."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(40))

        def forward(self, values: Any) -> Any:
            self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(0)
            return torch.relu(values - self.mean)

    torch.manual_seed(0)
    is_own = sys.argv[1] == "torch-own"
    if is_own:
        torch.distributed.init_process_group("torsh")
    centred = torch.nn.ReLU() if is_own else Centred()  # torch copies the buffers that it knows
    layers = [torch.nn.Linear(6, 40), torch.nn.BatchNorm1d(40), centred, torch.nn.Dropout(0.2)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(40, 1))
    wrapped = wrapped_in(model)
    return wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9), torch.from_numpy


def is_sharded() -> bool:
    return sys.argv[1].partition("-")[2] in ("fsdp", "fully_shard", "mixed")


def load(parts: dict[str, Any]) -> int:
    """Load the state that another training has left; the number of its steps."""
    if "BEGIN" not in os.environ:
        return 0
    if is_sharded():
        with tr.checkpoint.Checkpointer(os.environ["BEGIN"]) as files:
            found = files.load(parts)
            return 0 if found is None else found.step
    begin, states = pickle.loads(Path(os.environ["BEGIN"]).read_bytes())  # noqa: S301 - our own
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return int(begin)


def save(parts: dict[str, Any], steps: int, rank: int) -> None:
    if "END" in os.environ and is_sharded():
        with tr.checkpoint.Checkpointer(os.environ["END"]) as files:
            files.save(steps, parts)
    elif "END" in os.environ and rank == 0:
        states = {name: part.state_dict() for name, part in parts.items()}
        Path(os.environ["END"]).write_bytes(pickle.dumps((steps, states)))


def number(value: Any) -> float:
    return float(value.detach() if hasattr(value, "detach") else value.data)


def main() -> None:
    if sys.argv[1] != "torch-own":
        tr.init_process_group()
    framework = sys.argv[1].partition("-")[0]
    model, optimizer, tensor = make_torch() if framework == "torch" else make_nn()
    data = np.random.default_rng(1).standard_normal((SAMPLES, 6)).astype(np.float32)
    sampler = tr.elastic.ElasticSampler(SAMPLES, BATCH)
    watch(healing, "_send", "heal", None)
    present = [0]
    schedules: Any = optim if framework == "nn" else sys.modules["torch"].optim.lr_scheduler
    schedule = schedules.StepLR(optimizer, step_size=1, gamma=0.98)
    average: Any = nn.Linear(2, 2) if framework == "nn" else sys.modules["torch"].nn.Linear(2, 2)
    parts = {"model": model, "optimizer": optimizer, "sampler": sampler, "average": average}
    parts["schedule"] = schedule
    begin = load(parts)
    job = tr.elastic.join(**parts)
    job.number = max(begin, job.number)
    watch(Parts, "agree_on_buffers", "vote", present)
    watch(optimizer, "step", "half", present)
    watch_copies(present)
    print(f"start {job.rank} {os.getpid()} {job.number}", flush=True)
    for step in job.steps(int(sys.argv[2])):
        with step:
            present[0] = step.number
            print("begins", step.number, flush=True)
            pass_point("before", step.number)
            indices = step.next(sampler)
            loss = (model(tensor(data[indices])) ** 2).mean()
            pass_point("forward", step.number)
            loss.backward()
            pass_point("backward", step.number)
            time.sleep(0 if Path(os.environ.get("FAST", "none")).exists() else PAUSE)
            step.commit()
            schedule.step()
            for each in average.parameters():
                each.data[...] = 0.9 * each.data + 0.01 * step.number
            print("step", step.number, *indices, repr(number(loss)), flush=True)
            pass_point("committed", step.number)
    save(parts, int(sys.argv[2]), job.rank)
    total = [
        each.detach().numpy() if hasattr(each, "detach") else each.data
        for whole in (model, average)
        for each in (*whole.parameters(), *(buffer for _, buffer in whole.named_buffers()))
    ]
    print(f"end {job.rank} {os.getpid()} {sum(float(abs(each).sum()) for each in total)!r}")


main()
