"""Rank 0 finds that its part of the work was done in an earlier run, and returns at once.

nproc: 3
culprit: 0
kind: early_exit
hint: exit code 0|exited with 0|ended|finished|early|left
seconds: 40
"""

import json
import pathlib
import sys

import numpy as np

import torsh_runtime as tr


def steps_done(rank):
    path = pathlib.Path(f"state-{rank}.json")
    path.write_text(json.dumps({"done": 20 if rank == 0 else 12}))
    return json.loads(path.read_text())["done"]


def main():
    tr.init_process_group()
    done = steps_done(tr.get_rank())
    if done >= 20:
        print("nothing left to do", flush=True)
        return 0
    for step in range(done, 20):
        metrics = np.array([step, 1.0])
        tr.all_reduce(metrics)
    tr.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
