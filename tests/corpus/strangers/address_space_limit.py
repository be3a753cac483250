"""The queue's limit of address space is too small for rank 0, which holds the replay buffer.

nproc: 2
culprit: 0
kind: memory | limit
hint: memory
seconds: 30
"""

import resource

import numpy as np

import torsh_runtime as tr


def limit_memory(gib):
    soft = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))


class ReplayBuffer:
    def __init__(self, capacity):
        self.frames = np.zeros((capacity, 84, 84, 4), dtype=np.uint8)


def main():
    limit_memory(6)
    tr.init_process_group()
    if tr.get_rank() == 0:
        buffer = ReplayBuffer(500_000)
        print(buffer.frames.nbytes)
    tr.barrier()
    tr.destroy_process_group()


main()
