"""All ranks end with the same exception of the trainer's; only rank 1's has a cause of its own.

nproc: 3
culprit: 1
kind: exception
hint: struct.error|unpack|StepFailed
seconds: 30
"""

import logging
import os
import struct
import time

import numpy as np

import torsh_runtime as tr

logging.basicConfig(format="%(levelname)s %(message)s")


class StepFailed(Exception):
    pass


class Trainer:
    def __init__(self, records: list[bytes]) -> None:
        self.records = records
        self.weights = np.zeros(4)

    def step(self, i: int) -> None:
        values = np.array(struct.unpack("<4d", self.records[i]))
        tr.all_reduce(values, tr.ReduceOp.AVG)
        self.weights += values

    def fit(self) -> None:
        for i in range(len(self.records)):
            try:
                self.step(i)
            except Exception as error:
                logging.error("step %d failed, giving up", i)
                time.sleep(0.5)  # the last metrics are on their way
                raise StepFailed(f"step {i} failed") from error


def main() -> None:
    tr.init_process_group(timeout=20)
    records = [struct.pack("<4d", i, 1, 2, 3) for i in range(12)]
    if os.environ["RANK"] == "1":
        records[8] = records[8][:-3]
    Trainer(records).fit()


main()
