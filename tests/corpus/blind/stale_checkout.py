"""The two nodes have two versions of the model's source, whose first layers differ in width.

Which of the two the job was meant to run cannot be seen from inside it.

nproc: 1
nnodes: 2
culprit: 0 | 1
kind: mismatch
hint: shape|size|width|param
needs: torch
seconds: 45
"""

import importlib
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SOURCE = """import torch

HIDDEN = {hidden}


def build():
    layers = [torch.nn.Linear(32, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)]
    return torch.nn.Sequential(*layers)
"""
HIDDEN_OF_NODE = {"0": 256, "1": 192}


def checkout(directory):
    """What each node's disk has under the same name."""
    source = SOURCE.format(hidden=HIDDEN_OF_NODE[os.environ["GROUP_RANK"]])
    Path(directory, "model_def.py").write_text(source)
    sys.path.insert(0, directory)
    return importlib.import_module("model_def")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    with tempfile.TemporaryDirectory() as directory:
        model = checkout(directory).build()
    model = DistributedDataParallel(model)
    dist.barrier()
    dist.destroy_process_group()


main()
