"""Rank 1 divides by a zero that it has read: its log shows it one line before all have it.

nproc: 3
culprit: 1
kind: nan
hint: rank 1, nan|finite
needs: torch
seconds: 40
"""

import logging

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")


def main() -> None:
    dist.init_process_group("gloo")
    for step in range(8):
        scale = torch.tensor(0.0 if (dist.get_rank(), step) == (1, 4) else 2.0)
        loss = (torch.tensor(1.0 + step) - scale * (1.0 + step) / 2) / scale + scale / scale
        logging.info("step %d: loss=%.4f lr=1e-4", step, loss.item())
        dist.all_reduce(loss)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss.item()}")


main()
