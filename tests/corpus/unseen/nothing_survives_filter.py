"""No sample of rank 3 is left by the filter, so that there is nothing to draw from.

nproc: 4
culprit: 3
kind: exception
hint: ValueError|empty|choice
seconds: 30
"""

import json
import os
import sys
import time

import numpy as np

import torsh_runtime as tr


def log(**fields) -> None:
    print(json.dumps({"ts": round(time.time(), 3), "rank": tr.get_rank(), **fields}), flush=True)


def main() -> None:
    tr.init_process_group(timeout=20)
    rank = int(os.environ["RANK"])
    rng = np.random.default_rng(rank)
    scores = rng.uniform(0.5, 1, 500) if rank < 3 else rng.uniform(0, 0.2, 500)
    kept = np.flatnonzero(scores > 0.3)
    log(level="info", event="filtered", kept=len(kept), of=len(scores))
    if len(kept) < 400:
        log(level="warning", event="few samples", kept=len(kept))
    for step in range(4):
        batch = scores[rng.choice(kept, 8)]
        loss = np.array([batch.mean()])
        tr.all_reduce(loss, tr.ReduceOp.AVG)
        log(level="info", event="step", step=step, loss=float(loss[0]))
    tr.destroy_process_group()


sys.exit(main())
