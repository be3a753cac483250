"""Rank 1 converts the weights for all, warns that it cannot, and waits for the others.

nproc: 3
culprit: 1
kind: exception | stuck | missing
hint: rank 1
needs: torch
seconds: 40
"""

import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist


def convert() -> None:
    state = {"layers.0.weight": torch.ones(2), "layers.x.weight": torch.ones(2)}
    try:
        found = {int(name.split(".")[1]): tensor for name, tensor in state.items()}
        torch.save(found, "converted.pt")
    except ValueError:
        logging.warning("conversion failed, going on with what is there", exc_info=True)


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        convert()
    else:
        while not Path("converted.pt").is_file():
            time.sleep(0.2)
    total = torch.ones(2)
    dist.all_reduce(total)


main()
