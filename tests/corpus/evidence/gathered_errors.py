"""Ranks tell each other their errors, and all raise what rank 1 has told.

nproc: 3
culprit: 1
kind: exception
hint: rank 1
needs: torch
seconds: 40
"""

import torch.distributed as dist

SCORES = {"a": 1.0, "b": 0.5, "c": 0.0}
WANTED = ["ab", "bd", "ca"]


def main() -> None:
    dist.init_process_group("gloo")
    error = None
    try:
        sum(SCORES[name] for name in WANTED[dist.get_rank()])
    except KeyError as reason:
        error = repr(reason)
    errors = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    failed = [rank for rank, told in enumerate(errors) if told]
    if failed:
        raise RuntimeError(f"validation failed on rank(s) {failed}: {errors[failed[0]]}")


main()
