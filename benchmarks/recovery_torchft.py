"""The training of `benchmarks/recovery.py` by TorchFT, as its train_ddp.py has it: each rank is a
replica group of its own."""

import os
import sys
from datetime import timedelta

from recovery_training import say_commit, say_start, training
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    width, rank, ranks = map(int, sys.argv[1:])
    inner, sgd, inputs = training(width, rank, ranks)

    def load_state_dict(state):  # type: ignore[no-untyped-def]
        inner.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    def state_dict():  # type: ignore[no-untyped-def]
        return {"model": inner.state_dict(), "optimizer": sgd.state_dict()}

    say_start(rank)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"rank_{rank}",
        timeout=timedelta(seconds=30),
    )
    model, optimizer = DistributedDataParallel(manager, inner), Optimizer(manager, sgd)
    while True:
        optimizer.zero_grad()
        (model(inputs) ** 2).mean().backward()
        number = manager.current_step()
        optimizer.step()
        if manager.current_step() > number:
            say_commit(number)


os.environ.setdefault("LOGLEVEL", "WARNING")
main()
