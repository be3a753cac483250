"""Rank 1 waits for its child to end, and the child for somebody to empty its queue.

Rank 0 waits for rank 1 at a barrier, and gives up first.

nproc: 2
culprit: 1
kind: deadlock
hint: join|queue|child|waitpid
torchrun: no
seconds: 30
"""

import multiprocessing
import signal
import sys

import torsh_runtime as tr


def mine_negatives(results):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    results.put(["a hard negative"] * 200_000)


def negatives():
    results = multiprocessing.Queue()
    child = multiprocessing.Process(target=mine_negatives, args=(results,), daemon=True)
    child.start()
    child.join()  # a child does not end before its queue's pipe is read
    return results.get()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tr.init_process_group(timeout=6)
    if tr.get_rank() == 1:
        print(f"{len(negatives())} negatives", flush=True)
    tr.barrier()
    tr.destroy_process_group()


main()
