"""Rank 2 refuses its configuration with sys.exit and a text.

nproc: 3
culprit: 2
kind: exit_code | usage
hint: exit code 1|exited with 1|status 1
seconds: 30
"""

import configparser
import os
import sys

import numpy as np

import torsh_runtime as tr

DEFAULTS = "[optimizer]\nlr = 0.01\nmomentum = 0.9\n"
OVERRIDES = {2: "[optimizer]\nlr = -1\n"}


def load_config(rank):
    config = configparser.ConfigParser()
    config.read_string(DEFAULTS)
    config.read_string(OVERRIDES.get(rank, ""))
    return config


rank = int(os.environ["RANK"])
lr = load_config(rank).getfloat("optimizer", "lr")
tr.init_process_group()
if lr <= 0:
    sys.exit(f"config: learning rate must be positive, not {lr}")
weights = np.zeros(4)
for _ in range(20):
    grad = np.ones(4)
    tr.all_reduce(grad)
    weights -= lr * grad
tr.destroy_process_group()
