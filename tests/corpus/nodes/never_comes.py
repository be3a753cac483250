"""The job is for two nodes, and the second one was never started.

culprit: node 1
kind: missing
hint: node, join|came|wait|come|in time|too few
options: --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29533
options: --rdzv-id alone --rdzv-conf join_timeout=6
seconds: 30
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
