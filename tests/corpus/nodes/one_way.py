"""Packets from the third host are lost, those to it arrive.

Its neighbours' addresses are set to ones that nobody has.

nproc: 1
nnodes: 3
culprit: node 2
kind: network
hint: node 2|10.77.0.3|rank 2, lost|network|reach|sign of life|connection
needs: netns
seconds: 40
"""

import os
import subprocess
import time

import numpy as np

import torsh_runtime as tr


def lose_packets() -> None:
    for number in (1, 2):
        nobody = [f"10.77.0.{number}", "lladdr", "02:00:00:00:00:77", "dev", "plug"]
        subprocess.run(["ip", "neigh", "replace", *nobody, "nud", "permanent"], check=True)


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(1000):
        if step == 20 and os.environ["RANK"] == "2":
            lose_packets()
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)


main()
