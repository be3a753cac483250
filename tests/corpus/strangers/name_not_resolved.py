"""Rank 1 asks for a data server whose name has no address.

nproc: 2
culprit: 1
kind: network
hint: name|resolve, network
needs: torch
seconds: 60
"""

import os
import socket

import torch
import torch.distributed as dist

SERVERS = {0: "localhost", 1: "data-7.cluster.invalid"}


class Client:
    def __init__(self, host, port):
        self.address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]


def main():
    dist.init_process_group("gloo")
    client = Client(SERVERS[int(os.environ["RANK"])], 9000)
    print("streaming from", client.address, flush=True)
    ready = torch.ones(1)
    dist.all_reduce(ready)
    dist.destroy_process_group()


main()
