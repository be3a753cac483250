"""Rank 1 skips an empty batch, and with it the exchange of gradients.

From then on its exchanges are one step off, which nobody notices before it has none left.

nproc: 3
culprit: 1
kind: missing | early_exit | mismatch
hint: all_reduce
seconds: 60
"""

import numpy as np

import torsh_runtime as tr

STEPS = 8


def batches(rank):
    rng = np.random.default_rng(rank)
    for step in range(STEPS):
        size = 0 if (rank, step) == (1, 4) else 16
        yield rng.normal(size=(size, 32)).astype(np.float32)


def main():
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    weights = np.zeros(32, np.float32)
    for step, batch in enumerate(batches(rank)):
        if not len(batch):
            print(f"WARNING: rank {rank}: empty batch at step {step}, skipping")
            continue
        grad = batch.mean(axis=0)
        tr.all_reduce(grad)
        weights -= 0.1 * grad / tr.get_world_size()
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
