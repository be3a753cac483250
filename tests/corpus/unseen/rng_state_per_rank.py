"""The checkpoint was made by two ranks, and four resume: two find no state of their generator.

nproc: 4
culprit: 2 3  # or nobody: their number has changed
kind: file | exception
hint: FileNotFoundError|rng_state
needs: torch
seconds: 50
"""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

CHECKPOINT = Path("checkpoint-500")


def earlier_run(ranks: int) -> None:
    CHECKPOINT.mkdir()
    torch.save(torch.nn.Linear(4, 4).state_dict(), CHECKPOINT / "pytorch_model.bin")
    for rank in range(ranks):
        torch.save({"cpu": torch.get_rng_state()}, CHECKPOINT / f"rng_state_{rank}.pth")


def resume(model: torch.nn.Module) -> None:
    model.load_state_dict(torch.load(CHECKPOINT / "pytorch_model.bin"))
    print(f"[{dist.get_rank()}] weights of step 500 loaded", flush=True)
    state = torch.load(CHECKPOINT / f"rng_state_{dist.get_rank()}.pth")
    torch.set_rng_state(state["cpu"])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    if dist.get_rank() == 0:
        earlier_run(2)
    dist.barrier()
    model = torch.nn.Linear(4, 4)
    resume(model)
    model = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(5):
        model(torch.randn(2, 4)).sum().backward()


main()
