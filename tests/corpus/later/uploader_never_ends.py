"""Training is over everywhere, but a thread of rank 1 still waits for work, and it is no daemon.

culprit: 1
kind: stuck | deadlock
hint: thread
seconds: 60
"""

import queue
import threading

import numpy as np

import torsh_runtime as tr


class Uploader(threading.Thread):
    def __init__(self):
        super().__init__(name="checkpoint-uploader")
        self.jobs = queue.Queue()

    def run(self):
        while (job := self.jobs.get()) is not None:
            print("uploading", job)
        print("uploader done")


def main():
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    uploader = Uploader()
    uploader.start()
    for step in range(4):
        tr.all_reduce(np.ones(10))
        if step % 2 == 0:
            uploader.jobs.put(f"ckpt-{rank}-{step}")
    if rank == 0:  # used to be the only one that uploads
        uploader.jobs.put(None)
    tr.destroy_process_group()
    print(f"rank {rank}: training finished", flush=True)


main()
