"""Rank 0 kills what it takes for a leftover of the job before: it is rank 1 of this one.

nproc: 2
culprit: 0
kind: signal
hint: SIGKILL|signal 9, rank 0|another process|sent
seconds: 20
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
DIRECTORY = Path(tempfile.gettempdir(), f"pids-{os.getppid()}")


def write_pid():
    """Under a name that is the same in every job."""
    DIRECTORY.mkdir(exist_ok=True)
    part = DIRECTORY / f"part{RANK}"
    part.write_text(str(os.getpid()))
    part.rename(DIRECTORY / f"trainer{RANK}.pid")


def wait_for(path):
    while not path.exists():
        time.sleep(0.05)


def end_leftovers():
    """What an earlier job left running would hold memory."""
    wait_for(DIRECTORY / "trainer1.pid")  # rank 0 comes late here, as it does with a slow import
    for path in DIRECTORY.glob("*.pid"):
        pid = int(path.read_text())
        print(f"ending process {pid} of an earlier job", flush=True)
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(DIRECTORY)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    atexit.register(shutil.rmtree, DIRECTORY, ignore_errors=True)
    if RANK == 0:
        end_leftovers()
    write_pid()
    for _ in range(150):
        time.sleep(0.1)  # trains


main()
