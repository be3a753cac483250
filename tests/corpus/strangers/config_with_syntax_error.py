"""The configuration is Python, and lacks a bracket.

nproc: 2
culprit: none
kind: syntax
hint: Python, syntax|cannot read|slip
seconds: 30
"""

import os
import pathlib
import runpy

import torsh_runtime as tr

CONFIG = """\
model = dict(width=64, depth=4
optimizer = dict(name="adamw", lr=3e-4)
epochs = 2
"""


def load(path):
    return runpy.run_path(str(path))


folder = pathlib.Path(f"run{os.environ['RANK']}")
folder.mkdir()
(folder / "experiment.py").write_text(CONFIG)
config = load(folder / "experiment.py")
tr.init_process_group()
for _ in range(config["epochs"]):
    tr.barrier()
tr.destroy_process_group()
