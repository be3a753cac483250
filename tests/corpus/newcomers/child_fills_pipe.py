"""Rank 1 waits for a converter to end, which waits for somebody to read what it writes.

nproc: 2
culprit: 1
kind: deadlock | stuck
hint: wait|pipe|child, all_reduce
seconds: 60
"""

import subprocess
import sys

import numpy as np

import torsh_runtime as tr

CONVERTER = "import sys\nfor i in range(int(sys.argv[1])): print('converted sample', i)"
SAMPLES = {0: 200, 1: 20_000}


def convert(samples):
    converter = subprocess.Popen(
        [sys.executable, "-c", CONVERTER, str(samples)], stdout=subprocess.PIPE
    )
    if converter.wait() != 0:
        raise RuntimeError("the converter failed")
    return len(converter.stdout.read().splitlines())


def main():
    tr.init_process_group(timeout=10)
    count = np.array([convert(SAMPLES[tr.get_rank()])])
    tr.all_reduce(count)
    print(count)
    tr.destroy_process_group()


main()
