"""A program whose collective on fake GPUs fails behind a Work that a stream has waited for.

`gpu_failure.py MODE`: after the failure it ends ("leave"), waits ("stay"), begins another
collective ("call") or closes its group ("close"). It closes the group before the failure ("early"),
or as an exception of its own ends it ("exception"). Where it waits, sys.stderr may stand for
something else, as in a notebook ("hidden"), or nobody reads what it writes ("unread"). Rank 1 is a
thread that does not come to the collective.
"""

from __future__ import annotations

import io
import secrets
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from support import fake_cupy, nccl_groups
from support.fake_gpus import fake_gpus

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.nccl import backend, unreported
from torsh_runtime.backends.nccl.backend import NcclBackend
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

LONG = 30.0


def main(mode: str) -> None:
    hosted = HostedStore.start(f"unix:@torsh-test-{secrets.token_hex(8)}", b"")
    with fake_gpus(2) as machine:
        groups: list[NcclBackend] = []

        def connect(rank: int) -> None:
            machine.current = machine.gpus[rank]
            client = StoreClient.connect(hosted.endpoint, b"", LONG)
            group = nccl_groups.connect(client, rank, 2, LONG)
            group.barrier(LONG)
            groups.append(group)

        peer = threading.Thread(target=connect, args=(1,), daemon=True)
        peer.start()
        connect(0)
        peer.join()
        [group] = [each for each in groups if each.rank == 0]
        values = fake_cupy.asarray(np.full(4, 7, np.float32))
        if mode in ("early", "exception"):
            backend._FAREWELL = 0.2
            before(mode, group, values)
        group.all_reduce(values, ReduceOp.SUM, 0.5)
        print("got", values.get().tolist(), flush=True)
        after(mode, group)
    hosted.close()


def before(mode: str, group: NcclBackend, values: object) -> None:
    group.all_reduce(values, ReduceOp.SUM, 1.0 if mode == "early" else LONG)
    try:
        if mode == "exception":
            raise ArithmeticError("the program's own")
    finally:
        group.close()


def after(mode: str, group: NcclBackend) -> None:
    if mode == "hidden":
        sys.stderr = io.StringIO()
    if mode == "unread":
        unreported._PATIENCE = 0.2
    while not group.failed:
        time.sleep(0.01)
    if mode in ("stay", "hidden", "unread"):
        time.sleep(LONG)
    if mode == "call":
        group.all_reduce(fake_cupy.asarray(np.zeros(4)), ReduceOp.SUM, LONG)
    if mode == "close":
        group.close()


if __name__ == "__main__":
    main(sys.argv[1])
