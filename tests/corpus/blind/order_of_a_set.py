"""Both ranks average the parameters of a set, whose order is another in every process.

Neither order is the right one.

nproc: 2
culprit: 0 | 1
kind: mismatch
hint: all_reduce, shape|elements|size|bytes
torchrun: no
seconds: 20
"""

import numpy as np

import torsh_runtime as tr

LAYERS = 24


def parameters():
    return {f"layer{n}.weight": np.ones((n + 1, 8), np.float32) for n in range(LAYERS)}


def main():
    tr.init_process_group(timeout=15)
    weights = parameters()
    frozen = {"layer0.weight", "layer1.weight"}
    for name in set(weights) - frozen:
        tr.all_reduce(weights[name], tr.ReduceOp.AVG)
    tr.barrier()
    tr.destroy_process_group()


main()
