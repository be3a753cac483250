"""Every rank receives from its left neighbour before it sends to its right one: nobody ever sends.

nproc: 3
culprit: 0 1 2
kind: deadlock
hint: recv, deadlock|circle|cycle|each other|ring
torchrun: no
seconds: 30
"""

import numpy as np

import torsh_runtime as tr


def rotate(block):
    """One step of ring attention: keys and values move on to the next rank."""
    rank, ranks = tr.get_rank(), tr.get_world_size()
    received = np.empty_like(block)
    tr.recv(received, (rank - 1) % ranks)
    tr.send(block, (rank + 1) % ranks)
    return received


def main():
    tr.init_process_group(timeout=6)
    block = np.full(4096, tr.get_rank(), np.float32)
    for _ in range(tr.get_world_size()):
        block = rotate(block)
    tr.destroy_process_group()


main()
