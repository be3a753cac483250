"""Both ranks receive first under Gloo, with a deadline that nobody waits for.

culprit: 0 1
kind: deadlock
hint: recv|receive, rank 0|ranks 0, 1
needs: torch
seconds: 30
"""

import os

import torch
import torch.distributed as dist


def main() -> None:
    peer = 1 - int(os.environ["RANK"])
    dist.init_process_group("gloo")
    dist.recv(torch.empty(100), peer)
    dist.send(torch.ones(100), peer)


main()
