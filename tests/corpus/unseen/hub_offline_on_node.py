"""The second node has no way to the internet, and nobody filled its cache.

nnodes: 2
nproc: 1
culprit: node 1  # or its rank
kind: exception | file | network
hint: LocalEntryNotFoundError|offline|cache|config.json
needs: torch
seconds: 60
"""

import json
import os
from datetime import timedelta
from pathlib import Path

CACHE = Path(f"node{os.environ['RANK']}/hub").absolute()
NAME = "our-group/bert-micro"


def prefetch() -> None:
    """What the login node did for the first one."""
    folder = CACHE / f"models--{NAME.replace('/', '--')}"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text(json.dumps({"hidden_size": 8}))


def main() -> None:
    os.environ["HF_HUB_CACHE"] = str(CACHE)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import torch.distributed as dist
    from huggingface_hub import hf_hub_download

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    if dist.get_rank() == 0:
        prefetch()
    config = json.loads(Path(hf_hub_download(NAME, "config.json")).read_text())
    torch.manual_seed(0)
    layer = torch.nn.Linear(config["hidden_size"], 1)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    model(torch.ones(1, 8)).sum().backward()


main()
