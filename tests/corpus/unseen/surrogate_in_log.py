"""Rank 0 writes the names of all files to a report; one of them is no valid text.

nproc: 2
culprit: 0
kind: encoding | exception
hint: UnicodeEncodeError|surrogate|encod
needs: torch
seconds: 40
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    os.makedirs(f"wav{rank}", exist_ok=True)
    for name in (b"hello.wav", b"gr\xfc\xdfe.wav" if rank == 1 else b"bonjour.wav"):
        with open(os.path.join(os.fsencode(f"wav{rank}"), name), "wb") as file:
            file.write(b"RIFF")
    names: list = [None] * dist.get_world_size()
    dist.all_gather_object(names, sorted(os.listdir(f"wav{rank}")))
    if rank == 0:
        with open("used_files.txt", "w", encoding="utf-8") as report:
            for found in names:
                report.write("\n".join(found) + "\n")
    loss = torch.zeros(1)
    dist.all_reduce(loss)


main()
