"""An option that the launcher does not have.

culprit: none
kind: usage
hint: nproc-per-gpu
options: --nproc-per-gpu 2
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
