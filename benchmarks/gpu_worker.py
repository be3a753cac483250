"""Runs one rank of one case: `gpu_worker.py CASE FOLDER [--quick] [--device cpu]`.

It writes what it measured to FOLDER/rank-<n>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import gpu_faults, gpu_operations, gpu_training
from benchmarks.gpu_device import Device, join, join_torch
from benchmarks.timing import publish

BESIDE_TORCH = {
    "fsdp": gpu_training.fsdp,
    "launch-bound": gpu_training.launch_bound,
    "ddp": gpu_training.ddp,
    "ddp-gpt": gpu_training.ddp_gpt,
    "offload": gpu_training.offload,
    "calls": gpu_operations.calls,
}
"""Cases that need torch's group, too."""
ALONE = {
    "held": gpu_operations.held,
    "graph": gpu_operations.graph,
    "attention": gpu_operations.attention,
    "clip": gpu_operations.clip,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("case", choices=[*BESIDE_TORCH, *ALONE, "late", "death"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    device = Device(given.device, given.quick)
    join(device, gpu_faults.late_timeout(device) if given.case == "late" else 60.0)
    if given.case in BESIDE_TORCH:
        join_torch(device)
    cases: dict[str, Callable[[Device], dict[str, float]]] = {
        **BESIDE_TORCH,
        **ALONE,
        "late": gpu_faults.late,
        "death": partial(gpu_faults.death, folder=given.folder),
    }
    figures = cases[given.case](device)
    rank = os.environ["RANK"]
    publish(given.folder / f"rank-{rank}.json", json.dumps(figures).encode())
    sys.stdout.flush()
    os._exit(0)  # what a broken group or a busy GPU leaves is not waited for


if __name__ == "__main__":
    main()
