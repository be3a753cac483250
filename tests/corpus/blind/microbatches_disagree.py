"""Stage 0 of a pipeline sends four microbatches, and stage 1 receives five.

One drops the last, short one and the other does not; which is right the job does not say.

nproc: 2
culprit: 0 | 1
kind: deadlock
hint: recv, all_reduce
torchrun: no
seconds: 30
"""

import numpy as np

import torsh_runtime as tr

SAMPLES, MICROBATCH = 70, 16


def microbatches(drop_last):
    return SAMPLES // MICROBATCH if drop_last else -(-SAMPLES // MICROBATCH)


def first_stage():
    for _ in range(microbatches(drop_last=True)):
        tr.send(np.ones((MICROBATCH, 8), np.float32), 1)


def last_stage():
    activations = np.empty((MICROBATCH, 8), np.float32)
    for _ in range(microbatches(drop_last=False)):
        tr.recv(activations, 0)


def main():
    tr.init_process_group(timeout=6)
    if tr.get_rank() == 0:
        first_stage()
    else:
        last_stage()
    loss = np.ones(1, np.float32)
    tr.all_reduce(loss, tr.ReduceOp.AVG)
    tr.destroy_process_group()


main()
