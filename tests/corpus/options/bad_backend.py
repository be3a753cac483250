"""A way to meet that does not exist.

culprit: none
kind: usage
hint: redis, backend
options: --nnodes 2 --rdzv-backend redis --rdzv-endpoint 127.0.0.1:29535
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
