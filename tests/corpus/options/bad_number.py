"""The number of workers is no number.

culprit: none
kind: usage
hint: nproc, two
options: --nproc-per-node two
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
