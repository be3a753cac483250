"""Two ranks find that they have different columns, and nobody knows whose are the right ones.

nproc: 2
culprit: 0 | 1
kind: mismatch | exception
hint: rank 0, rank 1
seconds: 30
"""

import numpy as np

import torsh_runtime as tr

tr.init_process_group(timeout=10)
columns = np.zeros((2, 2), np.int64)
columns[tr.get_rank()] = (8, 3) if tr.get_rank() else (8, 4)
tr.all_reduce(columns)
if columns[0].tolist() != columns[1].tolist():
    rows = "\n".join(f"- Process {rank}: {each.tolist()}" for rank, each in enumerate(columns))
    raise RuntimeError(f"tables of the processes have other columns\n{rows}")
