"""Two modules of the project import each other.

nproc: 3
culprit: none
kind: import | exception
hint: ImportError|circular
needs: torch
seconds: 40
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

MODELS = """
from our_losses import contrastive

class Encoder:
    loss = staticmethod(contrastive)
"""
LOSSES = """
from our_models import Encoder

def contrastive(model: Encoder) -> float:
    return 0.0
"""


def checkout() -> None:
    folder = Path("src") / os.environ["RANK"]
    folder.mkdir(parents=True)
    (folder / "our_models.py").write_text(MODELS)
    (folder / "our_losses.py").write_text(LOSSES)
    sys.path.insert(0, str(folder))


def main() -> None:
    checkout()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    from our_models import Encoder

    print(Encoder.loss(Encoder()))
    dist.barrier()


main()
