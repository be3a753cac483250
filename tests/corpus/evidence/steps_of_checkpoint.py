"""Rank 1 counts its steps from one, so that ranks keep different ones in one checkpoint.

nproc: 2
culprit: none
kind: mismatch
hint: step|alike|same
seconds: 30
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=10)
with tr.checkpoint.Checkpointer("checkpoints") as checkpointer:
    for step in range(tr.get_rank(), 4):
        checkpointer.save(step, {"weights": np.ones(3)})
