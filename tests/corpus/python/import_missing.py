"""A package is not installed.

culprit: 0 1
kind: import
hint: sentencepiecez, install|environment|interpreter|Python
"""

import numpy as np
import sentencepiecez  # no such package

import torsh_runtime as tr

tr.init_process_group(timeout=30)
tr.all_reduce(np.ones(sentencepiecez.COUNT))
