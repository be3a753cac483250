"""Rank 2's table was saved by a spreadsheet: its first column's name begins with a mark of byte order.

nproc: 3
culprit: 2
kind: exception | encoding
hint: KeyError
needs: torch
seconds: 40
"""

import csv
from datetime import timedelta

import torch
import torch.distributed as dist


def export(path: str, encoding: str) -> None:
    with open(path, "w", encoding=encoding, newline="") as file:
        table = csv.writer(file)
        table.writerow(["label", "length", "weight"])
        table.writerows([i % 3, 10 + i, 0.5] for i in range(30))


def read(path: str) -> torch.Tensor:
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return torch.tensor([[float(row["length"]), float(row["label"])] for row in rows])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    path = f"hospital_{'abc'[rank]}.csv"
    export(path, "utf-8-sig" if rank == 2 else "utf-8")
    table = read(path)
    count = torch.tensor(len(table))
    dist.all_reduce(count)
    if rank == 0:
        print(f"{count.item()} patients", flush=True)


main()
