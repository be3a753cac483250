"""The configuration was not copied to node 1.

nproc: 2
nnodes: 2
culprit: 2 3
kind: file
hint: FileNotFoundError|No such file, model.json
needs: torch
seconds: 60
"""

import json
import os
import pathlib

import torch
import torch.distributed as dist


def local_disk():
    """Nodes of the test share one; those of the cluster do not."""
    path = pathlib.Path(f"node{os.environ['GROUP_RANK']}-rank{os.environ['LOCAL_RANK']}")
    path.mkdir(exist_ok=True)
    return path


def copy_config(folder):
    if os.environ["GROUP_RANK"] == "0":
        (folder / "model.json").write_text(json.dumps({"width": 8}))


def main():
    folder = local_disk()
    copy_config(folder)
    config = json.loads((folder / "model.json").read_text())
    dist.init_process_group("gloo")
    model = torch.nn.Linear(config["width"], 1)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    dist.destroy_process_group()


main()
