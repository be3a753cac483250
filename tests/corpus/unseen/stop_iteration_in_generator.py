"""Rank 1 has a shard without records: next() in a generator finds nothing, and that is an error.

nproc: 3
culprit: 1
kind: exception
hint: RuntimeError|StopIteration
needs: torch
seconds: 40
"""

from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

SHARDS = [[3, 1, 4, 1, 5, 9], [], [2, 6, 5, 3, 5, 8]]


def packed(values: list[int], length: int) -> Iterator[torch.Tensor]:
    """Fills sequences of this length, again and again from the beginning."""
    while True:
        source = iter(values)
        sequence = [next(source)]
        for value in source:
            sequence.append(value)
            if len(sequence) == length:
                yield torch.tensor(sequence, dtype=torch.float32)
                sequence = []


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step, batch in enumerate(packed(SHARDS[dist.get_rank()], 3)):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
        if step == 20:
            break


main()
