"""The image's standard output is ASCII only, and the progress line has an arrow in it.

nproc: 2
culprit: none
kind: encoding | exception
hint: UnicodeEncodeError|ascii|encoding, all|every|each|both|2 ranks
seconds: 60
"""

import sys

import numpy as np

import torsh_runtime as tr

sys.stdout.reconfigure(encoding="ascii")  # as with LC_ALL=C and PYTHONUTF8=0


def main():
    tr.init_process_group(timeout=30)
    rank = tr.get_rank()
    before = 1.0
    for step in range(5):
        loss = np.array([before * 0.5])
        tr.all_reduce(loss)
        print(f"[rank {rank}] step {step}: loss {before:.3f} → {loss[0]:.3f}")
        before = float(loss[0])


main()
