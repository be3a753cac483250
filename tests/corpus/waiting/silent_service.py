"""All ranks wait for a service of data that took their connections and says nothing.

nproc: 2
culprit: none
kind: stuck
hint: no progress|hang|hung, recv|socket|connection|network
"""

import os
import socket

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group()
    port = np.array([0])
    service = socket.create_server(("127.0.0.1", 0)) if os.environ["RANK"] == "0" else None
    if service:
        port[0] = service.getsockname()[1]
    tr.broadcast(port, 0)
    with socket.create_connection(("127.0.0.1", int(port[0]))) as connection:
        batch = connection.recv(1000)
    tr.all_reduce(np.array([len(batch)]))


main()
