"""Rank 1 broadcasts the scale before the statistics are summed; the others do it after.

nproc: 3
culprit: 1
kind: mismatch
hint: broadcast, all_reduce
seconds: 30
"""

import numpy as np

import torsh_runtime as tr


def sum_statistics(stats):
    tr.all_reduce(stats)


def share_scale(scale):
    tr.broadcast(scale, src=0)


tr.init_process_group()
rank = tr.get_rank()
stats, scale = np.ones(8, np.float32), np.full(8, rank, np.float32)
for _ in range(3):
    tr.all_reduce(stats)

phases = [sum_statistics, share_scale]
if rank == 1:  # a merge conflict was resolved the wrong way on this branch of the code
    phases.reverse()
for phase in phases:
    phase(scale if phase is share_scale else stats)
tr.destroy_process_group()
