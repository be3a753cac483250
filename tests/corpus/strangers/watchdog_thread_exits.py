"""A watchdog thread of rank 0 ends the process with status 3 and says nothing.

nproc: 2
culprit: 0
kind: exit_code
hint: exit code 3|exited with 3|status 3
seconds: 30
"""

import os
import threading
import time

import numpy as np

import torsh_runtime as tr


class Watchdog(threading.Thread):
    def __init__(self, patience):
        super().__init__(daemon=True)
        self.patience, self.seen = patience, time.monotonic()

    def tick(self):
        self.seen = time.monotonic()

    def run(self):
        while time.monotonic() - self.seen < self.patience:
            time.sleep(0.1)
        os._exit(3)


tr.init_process_group()
dog = Watchdog(1.0 if tr.get_rank() == 0 else 1000.0)
dog.start()
for step in range(100):
    loss = np.random.rand(1)
    tr.all_reduce(loss)
    if step < 10:
        dog.tick()
    time.sleep(0.1)
tr.destroy_process_group()
