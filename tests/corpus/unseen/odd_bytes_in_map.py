"""A file of float32 on rank 1 has three bytes too many.

nproc: 2
culprit: 1
kind: exception | file
hint: ValueError|multiple|memmap|size
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr


def write(path: str, rank: int) -> None:
    np.arange(4096, dtype=np.float32).tofile(path)
    if rank == 1:
        with open(path, "ab") as file:
            file.write(b"\n\n\n")  # `cat part-* >` of files that an editor had touched


def main() -> None:
    tr.init_process_group(timeout=20)
    rank = int(os.environ["RANK"])
    write(f"embeddings.{rank}.f32", rank)
    tr.barrier()
    print(f"rank {rank}: reading embeddings", flush=True)
    table = np.memmap(f"embeddings.{rank}.f32", np.float32, "r").reshape(-1, 64)
    mean = table.mean(0)
    tr.all_reduce(mean, tr.ReduceOp.AVG)
    tr.destroy_process_group()


main()
