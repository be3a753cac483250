"""The output directory is that of an earlier run, and the script refuses to write into it.

All ranks look, and all refuse.

nproc: 3
culprit: none
kind: usage | exception | file
hint: every|all|each|0-2, ValueError|output|overwrite
needs: torch
seconds: 40
"""

import os
from argparse import ArgumentParser
from datetime import timedelta

import torch.distributed as dist


def check_output_dir(path: str, overwrite: bool) -> None:
    if os.path.isdir(path) and os.listdir(path) and not overwrite:
        raise ValueError(
            f"Output directory ({path}) already exists and is not empty. "
            "Use --overwrite_output_dir to overcome."
        )


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--output_dir", default="outputs/bert-base")
    parser.add_argument("--overwrite_output_dir", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    os.makedirs("outputs/bert-base", exist_ok=True)  # what the run of yesterday left
    with open("outputs/bert-base/trainer_state.json", "w") as file:
        file.write("{}")
    dist.barrier()
    check_output_dir(args.output_dir, args.overwrite_output_dir)
    dist.barrier()


main()
