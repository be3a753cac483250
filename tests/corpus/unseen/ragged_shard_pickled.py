"""One shard was saved as an array of objects, which numpy loads only on request.

nproc: 4
culprit: 3
kind: exception | file
hint: ValueError|allow_pickle|object
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr


def convert(rank: int) -> str:
    """What the preprocessing made of each part, some months ago."""
    boxes = [np.zeros((4, 2), np.float32) for _ in range(16)]
    if rank == 3:
        boxes[5] = np.zeros((3, 2), np.float32)  # one polygon has a corner less
        packed = np.empty(len(boxes), object)
        packed[:] = boxes
    else:
        packed = np.stack(boxes)
    path = f"boxes_{rank:02d}.npy"
    np.save(path, packed, allow_pickle=True)
    return path


def main() -> None:
    tr.init_process_group(timeout=20)
    rank = int(os.environ["RANK"])
    path = convert(rank)
    count = np.zeros(1, np.int64)
    for epoch in range(3):
        boxes = np.load(path)
        count[0] = len(boxes)
        tr.all_reduce(count)
        if rank == 0:
            print(f"epoch {epoch}: {count[0]} boxes", flush=True)
    tr.destroy_process_group()


main()
