"""The cable of the third host comes out: nothing goes in or out there any more.

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


def main() -> None:
    tr.init_process_group(timeout=20)
    for step in range(1000):
        if step == 20 and os.environ["RANK"] == "2":
            subprocess.run(["ip", "link", "set", "plug", "down"], check=True)
        tr.all_reduce(np.ones(10))
        time.sleep(0.02)


main()
