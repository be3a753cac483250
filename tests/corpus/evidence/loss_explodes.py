"""The steps are too long for all: the error grows a hundredfold each time.

nproc: 3
culprit: none
kind: nan
hint: diverge|grown
seconds: 30
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=10)
weight = np.full(4, 1.5, np.float32)
np.seterr(all="ignore")
for step in range(100):
    gradient = weight * np.float32(1 + tr.get_rank() / 8)
    tr.all_reduce(gradient, tr.ReduceOp.AVG)
    weight -= np.float32(300) * gradient
    norm = np.linalg.norm(weight)
    print({"step": step, "norm": f"{norm:.3e}"}, flush=True)
    if not np.isfinite(norm):
        raise RuntimeError(f"the norm of the weights is not finite: {norm}")
