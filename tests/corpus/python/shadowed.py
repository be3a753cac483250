"""A file of the user's own is called like a module of Python, and others find it instead.

culprit: 0 1
kind: import | exception
hint: statistics, same name|shadow|statistics.py
"""

import sys
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    own = Path("lib")
    own.mkdir(exist_ok=True)
    (own / "statistics.py").write_text("MEANS = {}\n")
    sys.path.insert(0, str(own.resolve()))
    from statistics import mean

    tr.all_reduce(np.array([mean([1, 2])]))


main()
