"""A training in which bits of one rank's state flip: a script for torshrun.

Arguments: "nn" or "torch", the number of flips, and the seed. Steps are checked every second time,
and bits flip before the step that is checked: in a parameter, a moment, an averaged gradient or the
sampler. FAULT in the environment names other faults: "twice" flips a bit of rank 1 whenever step 4
begins, "half" flips one on ranks with odd numbers, "lost" flips one of rank 1 in a step without a
check, in which the last rank is killed, "none" nothing. ON_CORRUPTION is what join()
is given.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn, optim

EVERY = 2
KINDS = ["parameter", "moment", "gradient", "sampler"]
WAY, FLIPS, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
FAULT = os.environ.get("FAULT", "")
SAMPLES, BATCH = 60, 12


def make() -> tuple[Any, Any, Any]:
    if WAY == "nn":
        nn.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        return model, optim.AdamW(model.parameters(), lr=0.01), nn.Tensor
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)]
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), torch.from_numpy


def array(values: Any) -> np.ndarray[Any, Any]:
    """Return a view of a tensor's memory."""
    if not isinstance(values, np.ndarray):
        values = values.data
    view: np.ndarray[Any, Any] = values if isinstance(values, np.ndarray) else values.numpy()
    return view


class State:
    """The state of this rank, for what flips its bits and for what compares all of it."""

    def __init__(self, model: Any, optimizer: Any, sampler: Any) -> None:
        self.optimizer, self.sampler = optimizer, sampler
        self.parameters = {f"model/{name}": each for name, each in model.named_parameters()}

    def moments(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state[parameter].items():
                if hasattr(value, "shape") and value.shape:
                    yield f"optimizer/state/{name.removeprefix('model/')}/{key}", value

    def flip(self, kind: str, random: Random) -> str:
        """Flip a bit, and return what it is in; "" where that is not known."""
        if kind == "sampler":
            name = random.choice(["epoch", "num_taken", "seed"])
            value = getattr(self.sampler, name) ^ 1 << random.randrange(30)
            setattr(self.sampler, name, value)
            return "sampler"
        where = dict(self.moments()) if kind == "moment" else self.parameters
        name, chosen = random.choice(sorted(where.items(), key=lambda each: each[0]))
        bits = array(chosen.grad if kind == "gradient" else chosen).reshape(-1).view(np.uint32)
        bits[random.randrange(bits.size)] ^= np.uint32(1 << random.randrange(32))
        return "" if kind == "gradient" else name

    def digest(self) -> bytes:
        """Return a checksum of all of it, computed by other code than join()'s."""
        hashed = hashlib.sha256(repr(sorted(self.sampler.state_dict().items())).encode())
        for each in (*self.parameters.values(), *(value for _, value in self.moments())):
            hashed.update(array(each).tobytes())
        return hashed.digest()[:8]


def differing(state: State) -> list[int]:
    """Return the ranks whose states differ from those of most."""
    own = np.frombuffer(state.digest(), np.int64)
    told = tr.group.WORLD.all_gather_numbers(own)[:, 0].tolist()
    most = max(told, key=told.count)
    return [rank for rank, each in enumerate(told) if each != most]


def main() -> None:
    tr.init_process_group()
    model, optimizer, tensor = make()
    wrapped: Any = tr.DistributedDataParallel(model)
    data = np.random.default_rng(1).standard_normal((SAMPLES, 6)).astype(np.float32)
    sampler = tr.elastic.ElasticSampler(SAMPLES, BATCH)
    state, rank, size = State(model, optimizer, sampler), tr.get_rank(), tr.get_world_size()
    options: Any = {"on_corruption": os.environ.get("ON_CORRUPTION", "heal")}
    parts = {"model": wrapped, "optimizer": optimizer, "sampler": sampler}
    job = tr.elastic.join(check_every=EVERY, **options, **parts)
    for step in job.steps(EVERY * (FLIPS + 1)):
        random = Random(SEED * 1_000_003 + step.number)
        victim, kind = random.randrange(size), random.choice(KINDS)
        is_due = not FAULT and (step.number + 1) % EVERY == 0
        if FAULT == "twice" and step.number == 4 and rank == 1:
            state.flip("parameter", random)
        is_lossy = FAULT == "lost" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_lossy and step.number == 3 and rank == 1:
            print("flipped", state.flip("parameter", random), flush=True)
        with step:
            loss = (wrapped(tensor(data[step.next(sampler)])) ** 2).mean()
            loss.backward()
            if is_lossy and step.number == 3 and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            part = ""
            if is_due and kind == "gradient" and rank == victim:
                state.flip(kind, random)
            step.commit()
            if is_due and kind != "gradient" and rank == victim:
                part = state.flip(kind, random)
            if FAULT == "half" and step.number == 3 and rank % 2:
                state.flip("parameter", random)
            if is_due:
                odd = differing(state)
                if rank == victim:
                    print("flipped", kind, step.number + 1, rank, odd, part, flush=True)
    print(f"end {rank} {os.getpid()} {job.number} {state.digest().hex()}", flush=True)


main()
