"""The state of rank 1's reader has an open file in it, so that its part of the checkpoint fails.

All ranks get an error of the checkpoint, which tells of rank 1's.

nproc: 3
culprit: 1
kind: exception
hint: rank 1, TypeError|pickle|CheckpointException
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class Reader:
    """Reads samples from a file, which it opens when the first one is wanted."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.position = 0
        self.file = None

    def read(self) -> str:
        if self.file is None:
            self.file = open(self.path)
        return self.file.readline()

    def close_at_end(self) -> None:
        if self.file is not None and not self.file.read(1):
            self.file.close()
            self.file = None


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    path = f"samples{rank}.txt"
    with open(path, "w") as file:
        file.write("sample\n" * (6 if rank == 1 else 5))
    reader = Reader(path)
    for _ in range(5):
        reader.read()
    reader.close_at_end()
    state = {"weights": torch.ones(8), f"reader_of_{rank}": vars(reader)}
    dcp.save(state, checkpoint_id="ckpt/step-5")
    dist.barrier()


main()
