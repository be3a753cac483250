"""Rank 1 got the one large shard, in which it looks for duplicates with a list: that takes too long.

nproc: 2
culprit: 1
kind: slow | stuck
hint: rank 1, deduplicate|busy|running|all_reduce|slow|late
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist


def deduplicate(lines) -> list[str]:
    seen: list[str] = []
    for line in lines:
        if line not in seen:
            seen.append(line)
    return seen


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    dist.barrier()
    size = (1_000, 400_000)[dist.get_rank()]
    unique = deduplicate(f"https://example.org/{i * 7919 % size}" for i in range(size))
    total = torch.tensor(len(unique))
    dist.all_reduce(total)
    print(f"{total.item()} documents", flush=True)


main()
