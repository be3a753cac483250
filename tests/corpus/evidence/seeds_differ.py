"""Each rank draws a seed of its own, and then all find that they are not the same.

nproc: 2
culprit: none
kind: mismatch
hint: alike|same|broadcast
seconds: 30
"""

import random

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=10)
seed = 2 * random.randrange(1000) + tr.get_rank()
most, least = np.array([seed]), np.array([seed])
tr.all_reduce(most, tr.ReduceOp.MAX)
tr.all_reduce(least, tr.ReduceOp.MIN)
if most[0] != least[0]:
    raise ValueError("the seed of the sampler is not the same on all ranks")
