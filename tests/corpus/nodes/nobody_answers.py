"""The endpoint names a host on which nothing runs, and this one is not to serve it.

culprit: none
kind: network | store
hint: 29534, reach|connect|refused|answer|listen
options: --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29534
options: --rdzv-id x --rdzv-conf is_host=false,join_timeout=6
seconds: 90
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
