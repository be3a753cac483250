"""An option for the script stands before its name.

culprit: none
kind: usage
hint: learning-rate
options: --learning-rate 0.1
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
