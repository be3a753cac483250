"""Rank 1's path leads to an old copy of a module, which lacks the function that is asked for.

nproc: 2
culprit: 1
kind: import
hint: train_utils, old|another|copy|stale|shadow|scratch|path
seconds: 20
"""

import os
import sys
import tempfile
import time
from pathlib import Path

OLD = "def build_model():\n    return 'mlp'\n"
NEW = OLD + "\n\ndef build_scheduler():\n    return 'cosine'\n"


def lay_out(directory):
    """The project, and a copy of last month's in the scratch directory of one rank."""
    for place, text in (("scratch", OLD), ("project", NEW)):
        Path(directory, place).mkdir()
        Path(directory, place, "train_utils.py").write_text(text)
    sys.path.insert(0, str(Path(directory, "project")))
    if os.environ["RANK"] == "1":
        sys.path.insert(0, str(Path(directory, "scratch")))


def main():
    with tempfile.TemporaryDirectory() as directory:
        lay_out(directory)
        from train_utils import build_model, build_scheduler
    print(f"{build_model()} with {build_scheduler()}", flush=True)
    for _ in range(100):
        time.sleep(0.1)  # trains


main()
