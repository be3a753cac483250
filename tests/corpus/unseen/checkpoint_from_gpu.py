"""The checkpoint is of tensors on GPUs, and this machine has none.

nproc: 2
culprit: none
kind: exception | usage
hint: RuntimeError|cuda|map_location
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def checkpoint_of_another_machine(path: str) -> None:
    """Is as if a GPU had held it."""
    register = torch.serialization.register_package
    register(0, lambda storage: "cuda:0", lambda storage, location: None)
    torch.save({"model": torch.nn.Linear(4, 4).state_dict(), "epoch": 3}, path)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    path = "last.ckpt"
    if dist.get_rank() == 0 and not os.path.exists(path):
        checkpoint_of_another_machine(path)
    dist.barrier()
    model = torch.nn.Linear(4, 4)
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    model = torch.nn.parallel.DistributedDataParallel(model)


main()
