"""Rank 1 writes to a viewer that has ended, and has the default action for broken pipes.

nproc: 2
culprit: 1
kind: signal
hint: SIGPIPE|signal 13|broken pipe
seconds: 30
"""

import os
import signal
import subprocess
import time

import numpy as np

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as head and other filters like it


def viewer(lines):
    """It shows that many lines, and ends."""
    return subprocess.Popen(
        ["head", f"-n{lines}"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def main():
    rank = int(os.environ["RANK"])
    process = viewer(lines=5 if rank == 1 else 1000)
    for step in range(80):
        loss = float(np.exp(-step / 20))
        process.stdin.write(f"{step}\t{loss}\n")
        process.stdin.flush()
        time.sleep(0.1)
    process.stdin.close()
    process.wait()


main()
