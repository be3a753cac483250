"""All ranks compare their batches and show a list of shapes, in which rank 2's is another one.

nproc: 3
culprit: 2
kind: mismatch | exception
hint: rank 2
needs: torch
seconds: 40
"""

import torch
import torch.distributed as dist


def check(batch: torch.Tensor) -> None:
    shapes = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, tuple(batch.shape))
    if len(set(shapes)) > 1:
        rows = "\n".join(f"  rank {rank}: {shape}" for rank, shape in enumerate(shapes))
        raise ValueError(f"batches cannot be gathered, their shapes are:\n{rows}")


def main() -> None:
    dist.init_process_group("gloo")
    samples = torch.ones(15, 16)
    batch = samples[dist.get_rank() * 6 :][:6]
    check(batch)


main()
