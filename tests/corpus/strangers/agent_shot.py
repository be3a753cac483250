"""The out of memory killer of node 1 chooses the agent.

nproc: 2
nnodes: 2
culprit: node 1
kind: agent
hint: agent|node 1|lost
seconds: 60
"""

import os
import signal
import time

import numpy as np

import torsh_runtime as tr

tr.init_process_group()
value = np.ones(4)
for step in range(200):
    tr.all_reduce(value)
    value /= tr.get_world_size()
    if step == 10 and tr.get_rank() == 3:
        os.kill(int(os.environ["CORPUS_AGENT_PID"]), signal.SIGKILL)
    time.sleep(0.1)
tr.destroy_process_group()
