"""A clean-up of cron takes rank 2 for a process of somebody who has left, and sends it SIGQUIT.

nproc: 3
culprit: 2
kind: signal
hint: SIGQUIT|signal 3
seconds: 30
"""

import os
import subprocess
import time

import numpy as np

import torsh_runtime as tr

CLEAN_UP = 'sleep 2; kill -QUIT "$VICTIM"'


def main():
    tr.init_process_group()
    if tr.get_rank() == 2:
        subprocess.Popen(
            ["sh", "-c", CLEAN_UP],
            env=dict(os.environ, VICTIM=str(os.getpid())),
            start_new_session=True,
        )
    for step in range(150):
        time.sleep(0.1)
        loss = np.array([1 / (step + 1)])
        tr.all_reduce(loss)
    tr.destroy_process_group()


main()
