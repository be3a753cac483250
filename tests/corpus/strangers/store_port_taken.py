"""A helper of rank 0 listens already where rank 0 wants its second store.

nproc: 2
culprit: 0
kind: port
hint: Address already in use|EADDRINUSE|port
needs: torch
seconds: 60
"""

import os
import socket
from datetime import timedelta

import torch.distributed as dist

PORT = 20000 + os.getppid() % 9000


def start_profiler():
    """It listens at its default port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", PORT))
    listener.listen()
    return listener


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    profiler = start_profiler() if rank == 0 else None
    dist.barrier()
    store = dist.TCPStore("127.0.0.1", PORT, 2, is_master=rank == 0, timeout=timedelta(seconds=30))
    store.set(f"{rank}", "ready")
    dist.destroy_process_group()
    del profiler


main()
