"""The license server takes the connection of rank 0 and never answers.

nproc: 3
culprit: 0
kind: stuck | network
hint: recv|socket|license
needs: torch
seconds: 60
"""

import socket
from datetime import timedelta

import torch
import torch.distributed as dist


class LicenseServer:
    """It listens, but whoever should accept has hung."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]


def check_license(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /license HTTP/1.0\r\n\r\n")
        return connection.recv(100).startswith(b"HTTP/1.0 200")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    if dist.get_rank() == 0:
        server = LicenseServer()
        assert check_license(server.port)
    dist.barrier()
    weights = torch.zeros(8)
    dist.broadcast(weights, src=0)
    dist.destroy_process_group()


main()
