"""A worker for each GPU, on a machine without any.

culprit: none
kind: usage
hint: gpu|cuda
options: --nproc-per-node gpu
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
