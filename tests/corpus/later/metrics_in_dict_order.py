"""Metrics are reduced in the order in which a rank first met them, and that differs.

culprit: 0 | 1
kind: mismatch
hint: all_reduce, shape|elements|bytes|size
seconds: 60
"""

from collections import defaultdict

import numpy as np

import torsh_runtime as tr


class Meter:
    def __init__(self):
        self.values = {}
        self.counts = defaultdict(int)

    def update(self, name, value):
        self.values[name] = self.values.get(name, 0) + np.asarray(value, np.float64)
        self.counts[name] += 1

    def synchronise(self):
        for value in self.values.values():
            tr.all_reduce(value)


tr.init_process_group(timeout=30)
meter = Meter()
tasks = ["ner", "sentiment"] if tr.get_rank() == 0 else ["sentiment", "ner"]
for task in tasks * 3:
    meter.update(task, np.ones(9 if task == "ner" else 3))
meter.synchronise()
print({name: value.mean() for name, value in meter.values.items()})
