"""A thread of rank 2 keeps the condition while it waits for the main thread, which wants it.

nproc: 3
culprit: 2
kind: deadlock | stuck
hint: rank 2, lock
seconds: 40
"""

import queue
import threading

import numpy as np

import torsh_runtime as tr

changed = threading.Condition()
wishes: queue.Queue[int] = queue.Queue()
has_it = threading.Event()


def serve() -> None:
    with changed:
        has_it.set()
        wishes.get()
        changed.notify()


tr.init_process_group(timeout=20)
if tr.get_rank() == 2:
    threading.Thread(target=serve, daemon=True).start()
    has_it.wait()
    with changed:
        wishes.put(1)
tr.all_reduce(np.ones(3))
