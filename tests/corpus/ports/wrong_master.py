"""One rank's environment names a master where nobody listens.

nproc: 3
culprit: 2
kind: network
hint: connect|reach|refused|MASTER
needs: torch
seconds: 40
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    if os.environ["RANK"] == "2":
        os.environ["MASTER_PORT"] = str(unused_port())
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dist.all_reduce(torch.ones(4))


main()
