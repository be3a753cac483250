"""The prefetch thread of rank 3 ends with an exception; the main thread waits at an empty queue.

nproc: 4
culprit: 3
kind: stuck | exception | missing
hint: thread|queue
seconds: 60
"""

import queue
import threading

import numpy as np

import torsh_runtime as tr


def prefetch(rank, out):
    for i in range(20):
        row = f"{i},{i * 2},{rank}" if (rank, i) != (3, 7) else f"{i},,{rank}"
        out.put(np.array([float(v) for v in row.split(",")], np.float32))
    out.put(None)


def batches(rank):
    out = queue.Queue(maxsize=4)
    threading.Thread(target=prefetch, args=(rank, out), daemon=True, name="prefetch").start()
    while (item := out.get()) is not None:
        yield item


tr.init_process_group(timeout=60)
for n, batch in enumerate(batches(tr.get_rank())):
    tr.all_reduce(batch)
    if tr.get_rank() == 0:
        print(f"step {n}", flush=True)
