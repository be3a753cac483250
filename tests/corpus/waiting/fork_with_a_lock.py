"""A process is forked while another thread has a lock: the child waits for it for ever.

nproc: 2
culprit: 1
kind: deadlock | stuck
hint: rank 1, child|fork|process|lock|waitpid
"""

import os
import threading
import time

import numpy as np

import torsh_runtime as tr

LOGGING = threading.Lock()


def log() -> None:
    with LOGGING:
        time.sleep(1)


def prepare() -> None:
    """In a process of its own, which begins with a word in the log."""
    threading.Thread(target=log, daemon=True).start()
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        log()
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    tr.init_process_group()
    for step in range(4):
        if step == 2 and os.environ["RANK"] == "1":
            prepare()
        tr.all_reduce(np.ones(10))


main()
