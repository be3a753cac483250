"""Rank 1 gives up root before it opens the log in a directory that root owns.

nproc: 2
culprit: 1
kind: permission
hint: PermissionError|Permission denied, metrics
needs: root
seconds: 30
"""

import os
import time

RANK = int(os.environ["RANK"])


def drop_privileges():
    os.setgid(65534)
    os.setuid(65534)


def open_log(directory):
    return open(os.path.join(directory, f"metrics-{RANK}.csv"), "a", encoding="utf-8")


def main():
    os.makedirs("logs", mode=0o755, exist_ok=True)
    if RANK != 0:
        drop_privileges()
    with open_log("logs") as log:
        for step in range(100):
            log.write(f"{step},{step / 7:.3f}\n")
            time.sleep(0.1)


main()
