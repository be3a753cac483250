"""Two threads of rank 1 take two locks in opposite orders.

nproc: 2
culprit: 1
kind: deadlock | stuck
hint: lock|acquire
seconds: 40
"""

import threading
import time

import numpy as np

import torsh_runtime as tr

buffer_lock, stats_lock = threading.Lock(), threading.Lock()


def flush_stats(pause):
    with stats_lock:
        time.sleep(pause)
        with buffer_lock:
            pass


def push_batch(pause):
    with buffer_lock:
        time.sleep(pause)
        with stats_lock:
            pass


def main():
    tr.init_process_group()
    pause = 0.5 if tr.get_rank() == 1 else 0.0
    for _ in range(5):
        flusher = threading.Thread(target=flush_stats, args=(pause,), daemon=True)
        flusher.start()
        if tr.get_rank() != 1:
            flusher.join()
        push_batch(pause)
        loss = np.ones(1)
        tr.all_reduce(loss)
    tr.destroy_process_group()


main()
