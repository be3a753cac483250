"""YAML's 1e-4 without a dot is text to PyYAML, not a number.

nproc: 3
culprit: none
kind: exception | usage
hint: TypeError|exit code 1|exitcode +: 1, all|every|each|3 ranks|ranks 0-2|in the same way
seconds: 60
"""

import numpy as np
import yaml

import torsh_runtime as tr

CONFIG = """
model:
  width: 64
optimizer:
  name: sgd
  lr: 1e-4
  momentum: 0.9
"""


class SGD:
    def __init__(self, params, lr, momentum, name):
        self.params, self.lr, self.momentum = params, lr, momentum
        self.velocity = [np.zeros_like(p) for p in params]

    def step(self, grads):
        for p, v, g in zip(self.params, self.velocity, grads, strict=True):
            v *= self.momentum
            v += g
            p -= v * self.lr


tr.init_process_group(timeout=30)
cfg = yaml.safe_load(CONFIG)
params = [np.zeros(cfg["model"]["width"])]
opt = SGD(params, **cfg["optimizer"])
for _ in range(3):
    grad = np.ones(cfg["model"]["width"])
    tr.all_reduce(grad)
    opt.step([grad])
