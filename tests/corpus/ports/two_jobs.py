"""Two jobs of one user meet at the same port, and the other one's rank 0 answers there.

culprit: 1
kind: port | network
hint: port|address|store
needs: torch
seconds: 40
"""

import os
import socket
import threading
from datetime import timedelta

import torch
import torch.distributed as dist


def other_job() -> int:
    """It speaks another protocol there; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def main() -> None:
    if os.environ["RANK"] == "1":  # its ~/.bashrc exports the port of an earlier experiment
        os.environ["MASTER_PORT"] = str(other_job())
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dist.all_reduce(torch.ones(4))


main()
