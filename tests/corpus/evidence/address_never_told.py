"""Rank 0 cannot start its service, logs that, and goes on without having told where it is.

nproc: 3
culprit: 0
kind: exception | missing | store
hint: rank 0
needs: torch
seconds: 40
"""

import logging
from datetime import timedelta

import torch
import torch.distributed as dist


def start_service() -> str:
    table = {"gpu": 8000}
    return f"localhost:{table['cpu']}"


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        try:
            store.set("service/address", start_service())
        except Exception:
            logging.exception("no service in this run")
    else:
        store.wait(["service/address"], timedelta(seconds=3))
    dist.all_reduce(torch.ones(1))


main()
