"""A job of yesterday still holds the port that the script insists on.

culprit: 0
kind: port
hint: port|address, another|in use|ss -|holder
needs: torch
seconds: 40
"""

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main() -> None:
    port = 20000 + int(os.environ["MASTER_PORT"]) % 9000
    if os.environ["RANK"] == "0":
        yesterday = socket.create_server(("", port))
        if os.fork() == 0:  # in a process of its own
            time.sleep(30)
            os._exit(0)
        yesterday.close()
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(4))


main()
