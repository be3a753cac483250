"""The columns of each rank come out of a set, in an order that differs from rank to rank.

nproc: 2
culprit: none
kind: mismatch | exception
hint: rank
needs: torch
seconds: 40
"""

import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    names = ["age", "weight", "height", "name"]
    own = names[dist.get_rank() :] + names[: dist.get_rank()]
    orders = [None] * dist.get_world_size()
    dist.all_gather_object(orders, own)
    if any(order != own for order in orders):
        raise RuntimeError("order of columns differs between ranks, sort them first")


main()
