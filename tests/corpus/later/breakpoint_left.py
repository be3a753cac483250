"""A breakpoint() left in the code, for a case that only rank 1 meets.

nproc: 3
culprit: 1
kind: exception | stuck | missing
hint: BdbQuit|pdb|breakpoint|debugger
seconds: 60
"""

import os

import numpy as np

import torsh_runtime as tr


def loss_fn(logits, target):
    shifted = logits - logits.max(-1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    loss = -logp[np.arange(len(target)), target].mean()
    if loss > 20:
        breakpoint()
    return loss


rank = int(os.environ["RANK"])
tr.init_process_group(timeout=30)
for step in range(6):
    logits = np.random.default_rng(step + 100 * rank).normal(size=(8, 5))
    if rank == 1 and step == 3:
        logits *= 100
    loss = np.array([loss_fn(logits, np.arange(8) % 5)])
    tr.all_reduce(loss)
