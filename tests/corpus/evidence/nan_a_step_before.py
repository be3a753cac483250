"""Rank 2's number is none in one step, and everybody's in the next, after which all look.

nproc: 3
culprit: 2
kind: nan
hint: rank 2, nan|finite
seconds: 30
"""

import json
import math

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=10)
weight = np.ones(1)
for step in range(10):
    x = np.full(1, math.nan if (tr.get_rank(), step) == (2, 3) else 1.0)
    loss = (weight * x - 2) ** 2
    print(json.dumps({"rank": tr.get_rank(), "step": step, "loss": float(loss[0])}), flush=True)
    gradient = 2 * x * (weight * x - 2)
    tr.all_reduce(gradient, tr.ReduceOp.AVG)
    weight -= 0.1 * gradient
    if step % 5 == 4 and not np.isfinite(weight).all():
        raise ValueError(f"weight is {weight[0]}")
