"""Each rank has its own port for metrics, and that of the last one is too high to be one.

nproc: 4
culprit: 3
kind: port | exception | usage
hint: port|65535
seconds: 30
"""

import os
import socket
import time

BASE, STEP = 62500, 1100


def metrics_port(rank):
    return BASE + rank * STEP


def serve(port):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def main():
    with serve(metrics_port(int(os.environ["RANK"]))):
        for _ in range(100):
            time.sleep(0.1)


main()
