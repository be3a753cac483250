"""Rank 2 has nothing to validate and skips a barrier that is made by hand with a counter in the store.

The others wait for it there until their patience ends; it waits in all_reduce.

nproc: 3
culprit: 2
kind: missing | store | stuck | deadlock
hint: rank 2, all_reduce|wait|arrived|barrier
needs: torch
seconds: 50
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist


def meet(name: str, patience: float = 6) -> None:
    """A barrier that does not care for the backend."""
    store = dist.distributed_c10d._get_default_store()
    arrived = store.add(f"meet/{name}", 1)
    deadline = time.monotonic() + patience
    while arrived < dist.get_world_size():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: only {arrived} of {dist.get_world_size()} ranks came")
        time.sleep(0.05)
        arrived = store.add(f"meet/{name}", 0)


def validate(files: list[str]) -> float:
    if not files:
        return 0.0
    meet("before validation")
    return sum(map(len, files)) / len(files)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    files = ["a.wav", "bb.wav", "ccc.wav", "d.wav"]
    meet("start")
    score = torch.tensor([validate(files[2 * rank : 2 * rank + 2])])
    dist.all_reduce(score)


main()
