"""Rank 1 walks a tree that is too deep for recursion.

nproc: 2
culprit: 1
kind: exception
hint: rank 1, exit code 1|exited with 1|status 1
needs: torch
seconds: 40
"""

import torch
import torch.distributed as dist


class Node:
    def __init__(self, child=None):
        self.child = child

    def depth(self):
        return 1 if self.child is None else 1 + self.child.depth()


def parse_tree(levels):
    node = None
    for _ in range(levels):
        node = Node(node)
    return node


dist.init_process_group("gloo")
levels = [10, 20, 30, 5000] if dist.get_rank() == 1 else [10, 20, 30, 40]
for level in levels:
    depth = torch.tensor(parse_tree(level).depth())
    dist.all_reduce(depth, op=dist.ReduceOp.MAX)
    print("deepest tree:", depth.item(), flush=True)
dist.destroy_process_group()
