"""Each rank starts a server for metrics on one and the same port.

culprit: 1
kind: port
hint: port|address, another|in use|ss -|holder
"""

import os
import socket
import time

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=30)
    port = np.array([0])
    if os.environ["RANK"] == "0":
        metrics = socket.create_server(("127.0.0.1", 0))
        port[0] = metrics.getsockname()[1]
    tr.broadcast(port, 0)
    if os.environ["RANK"] == "1":
        metrics = socket.create_server(("127.0.0.1", int(port[0])))
    tr.all_reduce(np.ones(4))
    time.sleep(0.1)
    metrics.close()


main()
