"""A C++ library that rank 0 uses throws, nobody catches, and the process aborts.

nproc: 2
culprit: 0
kind: crash | signal
hint: SIGABRT|signal 6|Aborted|terminate called
seconds: 30
"""

import os
import sys
import time

import numpy as np

import torsh_runtime as tr


class Codec:
    """Stands for a binding: it does what libstdc++ does."""

    def encode(self, block):
        if block.max() > 250:
            sys.stderr.write(
                "terminate called after throwing an instance of 'std::out_of_range'\n"
                "  what():  vector::_M_range_check: __n >= this->size()\n"
            )
            sys.stderr.flush()
            os.abort()
        return block.tobytes()


tr.init_process_group()
codec, rank = Codec(), tr.get_rank()
for step in range(40):
    block = np.full(8, step * (10 if rank == 0 else 1))
    codec.encode(block)
    tr.all_reduce(block)
    time.sleep(0.02)
tr.destroy_process_group()
