"""Node 1's clock is an hour late, so it takes the token of node 0 for one not yet valid.

nproc: 1
nnodes: 2
culprit: node 1
kind: clock
hint: clock|not yet valid|hour
seconds: 60
"""

import os
import time

import numpy as np

import torsh_runtime as tr

LEEWAY = 60
LATE = {"1": 3600.0}  # seconds, by node: it started without its time server


def clock():
    return time.time() - LATE.get(os.environ["GROUP_RANK"], 0.0)


class Token:
    def __init__(self, issued, lifetime=600):
        self.issued, self.lifetime = issued, lifetime

    def check(self):
        now = clock()
        if now + LEEWAY < self.issued:
            raise ValueError(f"token is not yet valid: issued in {self.issued - now:.0f} s")
        if now > self.issued + self.lifetime + LEEWAY:
            raise ValueError(f"token expired {now - self.issued:.0f} s ago")


tr.init_process_group()
issued = np.array([clock()])
tr.broadcast(issued, src=0)
Token(float(issued[0])).check()
tr.barrier()
tr.destroy_process_group()
