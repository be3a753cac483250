"""The feature server that rank 2 asks resets its connection, which then looks like the loss of a peer.

nproc: 3
culprit: 2
kind: network | exception
hint: ConnectionResetError|connection reset
needs: torch
seconds: 40
"""

import socket
import struct
import threading
from datetime import timedelta

import torch
import torch.distributed as dist


def feature_server(restarts_after: int) -> int:
    """Stands for a service of somebody else's, which is restarted once in a while."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        for _ in range(restarts_after):
            connection.recv(8)
            connection.sendall(struct.pack("<4f", 1, 2, 3, 4))
        connection.recv(8)
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    port = feature_server(restarts_after=9 if dist.get_rank() == 2 else 10_000)
    with socket.create_connection(("127.0.0.1", port)) as client:
        for step in range(30):
            client.sendall(struct.pack("<q", step))
            features = torch.frombuffer(bytearray(client.recv(16)), dtype=torch.float32)
            dist.all_reduce(features)


main()
