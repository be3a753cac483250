"""Node 1's profile names a network interface for gloo that this node does not have.

nproc: 2
nnodes: 2
culprit: node 1
kind: network
hint: GLOO_SOCKET_IFNAME|interface
needs: torch
seconds: 60
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def cluster_profile():
    """What /etc/profile.d sets on the hosts: those of the second rack once had InfiniBand."""
    if os.environ["GROUP_RANK"] == "1":
        os.environ["GLOO_SOCKET_IFNAME"] = "ib0"


def main():
    cluster_profile()
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()


main()
