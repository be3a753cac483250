"""The endpoint's name has a slip, and no address.

culprit: none
kind: network | usage
hint: no-such-host, name|resolve|address|known
options: --nnodes 2 --rdzv-backend c10d --rdzv-endpoint no-such-host.invalid:29400
options: --rdzv-id x --rdzv-conf join_timeout=6
seconds: 90
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=20)
tr.all_reduce(np.ones(10))
