"""Starts a function in workers by accelerate's notebook_launcher or torch's elastic_launch.

`front_ends_function.py KIND SCENE FOLDER`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from front_ends_scene import play


def train(scene: str, folder: str) -> int:
    rank = int(os.environ["RANK"])
    play(scene, Path(folder), rank)
    return rank


def main() -> None:
    kind, *args = sys.argv[1:]
    if kind == "notebook_launcher":
        from accelerate import notebook_launcher

        notebook_launcher(train, args=tuple(args), num_processes=2)
        return
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="front-ends",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    if elastic_launch(config, train)(*args) != {0: 0, 1: 1}:
        raise SystemExit("other results than expected")


if __name__ == "__main__":
    main()
