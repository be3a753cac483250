"""Rank 0 uploads its checkpoint to a server that is down, again and again; the others wait for it.

nproc: 3
culprit: 0
kind: slow | missing | network
hint: barrier|rank 0
needs: torch
seconds: 60
"""

import logging
import socket
import time
from datetime import timedelta
from urllib.error import URLError
from urllib.request import Request, urlopen

import torch
import torch.distributed as dist

log = logging.getLogger("hub")


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def upload(path, url, retries=10):
    data = open(path, "rb").read()
    for attempt in range(retries):
        try:
            return urlopen(Request(url, data, method="PUT"), timeout=5)
        except URLError as error:
            delay = min(2**attempt, 30)
            log.warning("upload failed (%s), retrying in %d s", error.reason, delay)
            time.sleep(delay)
    raise RuntimeError("could not upload the checkpoint")


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    weights = torch.zeros(100)
    for step in range(20):
        dist.all_reduce(weights)
        if step == 10:
            if dist.get_rank() == 0:
                torch.save(weights, "step10.pt")
                upload("step10.pt", f"http://127.0.0.1:{closed_port()}/me/model/step10.pt")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
