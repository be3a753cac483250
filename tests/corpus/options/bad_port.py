"""A port that cannot be one.

culprit: none
kind: usage
hint: port, 700000
options: --master-port 700000
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
