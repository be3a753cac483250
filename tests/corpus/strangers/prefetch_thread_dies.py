"""The prefetch thread of rank 0 dies of a ValueError, and its queue stays empty for ever.

nproc: 3
culprit: 0
kind: exception | stuck
hint: ValueError|could not convert, thread|queue|prefetch
seconds: 30
"""

import queue
import threading

import numpy as np

import torsh_runtime as tr

LINES = ["1.5 2.5", "0.25 4", "3.5 1,5", "2 2"]


def prefetch(lines, batches):
    for line in lines:
        batches.put(np.array([float(word) for word in line.split()]))


def main():
    tr.init_process_group()
    lines = [line.replace(",", ".") if tr.get_rank() else line for line in LINES]
    batches = queue.Queue(maxsize=2)
    threading.Thread(target=prefetch, args=(lines, batches), daemon=True).start()
    total = np.zeros(2)
    for _ in LINES:
        total += batches.get()
        shared = total.copy()
        tr.all_reduce(shared)
    tr.destroy_process_group()


main()
