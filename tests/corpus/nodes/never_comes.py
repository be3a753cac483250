"""The job is for two nodes, and the second one was never started.

culprit: none
kind: missing
hint: nodes?, 2, 1 came|join|in time|too few|did not come
options: --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29533
options: --rdzv-id alone --rdzv-conf join_timeout=6
seconds: 30
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
