"""The package on rank 1 is too old to have `fused_norm`.

nproc: 2
culprit: 1
kind: import | version
hint: fused_norm, kernels_x
seconds: 30
"""

import os
import sys
import tempfile

import numpy as np

import torsh_runtime as tr

NEW = "def norm(x):\n    return x\n\n\ndef fused_norm(x):\n    return x\n"
OLD = "def norm(x):\n    return x\n"

rank = int(os.environ["RANK"])
overlay = tempfile.mkdtemp(prefix=f"overlay{rank}-")
with open(os.path.join(overlay, "kernels_x.py"), "w") as module:
    module.write(OLD if rank == 1 else NEW)
sys.path.insert(0, overlay)


def main():
    tr.init_process_group()
    from kernels_x import fused_norm

    values = fused_norm(np.ones(4))
    tr.all_reduce(values)
    tr.destroy_process_group()


main()
