"""Two threads of rank 2 take two locks in opposite order.

nproc: 3
culprit: 2
kind: deadlock | stuck | missing
hint: lock|acquire|with self
seconds: 60
"""

import threading
import time

import numpy as np

import torsh_runtime as tr


class Buffer:
    def __init__(self):
        self.data_lock = threading.Lock()
        self.stats_lock = threading.Lock()
        self.items, self.count = [], 0

    def put(self, item, pause):
        with self.data_lock:
            self.items.append(item)
            time.sleep(pause)
            with self.stats_lock:
                self.count += 1

    def report(self, pause):
        with self.stats_lock:
            time.sleep(pause)
            with self.data_lock:
                return self.count / max(1, len(self.items))


def main():
    tr.init_process_group(timeout=30)
    buffer = Buffer()
    pause = 0.3 if tr.get_rank() == 2 else 0.0
    for step in range(6):
        thread = threading.Thread(target=buffer.put, args=(step, pause), daemon=True)
        thread.start()
        if not pause:
            thread.join()
        rate = np.array([buffer.report(pause)])
        tr.all_reduce(rate)


main()
