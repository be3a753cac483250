"""Rank 1 alone loads a plugin, and sends an object of its to ranks that cannot unpickle it.

nproc: 3
culprit: 1
kind: import
hint: pickle|object, bleu_plugin|rank 1
needs: torch
seconds: 45
"""

import importlib
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

PLUGIN = """class Score:
    def __init__(self, value):
        self.value = value
"""


def score(rank):
    if rank != 1:
        return {"loss": 0.5}
    with tempfile.TemporaryDirectory() as plugins:  # installed for this user on one host only
        Path(plugins, "bleu_plugin.py").write_text(PLUGIN)
        sys.path.insert(0, plugins)
        return {"loss": 0.5, "bleu": importlib.import_module("bleu_plugin").Score(31.2)}


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    scores = [None] * dist.get_world_size()
    dist.all_gather_object(scores, score(dist.get_rank()))
    print(f"mean loss {sum(s['loss'] for s in scores) / len(scores)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
