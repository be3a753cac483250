"""Ranks on the workers of a Dask cluster: what comes of each scene is printed as a line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dask import delayed
from distributed import Future
from support.processes import soon

import torsh_runtime as tr
from torsh_runtime.errors import TorshError
from torsh_runtime.integrations.dask import DaskConfig, DaskIntegration, run


def ranks(factor: float, plus: float = 0) -> tuple[int, float]:
    """The rank, and a sum over all."""
    values = np.full(3, factor)
    tr.all_reduce(values)
    return tr.get_rank(), float(values[0]) + plus


def fails() -> None:
    """On rank 1; the others wait for it."""
    if tr.get_rank() == 1:
        raise KeyError("of rank 1")
    tr.barrier()


def loses_a_worker(mark: str) -> tuple[int, int, str]:
    """The first time rank 1 kills itself."""
    tr.barrier()
    if tr.get_rank() == 1 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    tr.barrier()
    return tr.get_rank(), tr.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"]


def grows(mark: str) -> int:
    """Wait for a third rank."""
    end = time.monotonic() + 100
    while tr.get_world_size() < 3 and time.monotonic() < end:
        Path(mark).touch()
        time.sleep(0.05)
        tr.barrier()
    return tr.get_world_size()


def torch_too() -> float:
    """torch.distributed in the same job."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("torsh")
    values = torch.ones(2)
    dist.all_reduce(values)
    dist.destroy_process_group()
    return float(values[0])


def appears(path: str) -> bool:
    """Wait for a file."""
    return soon(Path(path).exists, 100)


def meets_on(mark: str) -> None:
    """Wait, in collectives, for what does not come."""
    end = time.monotonic() + 100
    while time.monotonic() < end:
        tr.barrier()
        Path(mark).touch()


def refused(call: Callable[[], Any]) -> str:
    """What an error says."""
    try:
        return f"none: {call()}"
    except (TorshError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def main(folder: str) -> None:
    with DaskIntegration(DaskConfig(num_workers=2, memory_limit=0)) as dask:
        client = dask.client
        two = dask.submit_task(float, "2")
        print("sums", run(client, ranks, two, plus=two))
        print("again", dask.run_training(ranks, 1.0, num_workers=1))
        print("compute", dask.compute([]), dask.compute((delayed(int)("3"), 5)), dask.num_workers)
        print("torch", run(client, torch_too), run(client, torch_too))
        print("few", refused(lambda: run(client, ranks, 1.0, num_workers=3)))
        print("own", refused(lambda: run(client, fails)))
        address = sorted(client.nthreads())[1]
        busy = client.submit(appears, f"{folder}/done", workers=[address], pure=False)
        print("busy", refused(lambda: run(client, ranks, 1.0, start_timeout=0.5)))
        Path(folder, "done").touch()
        busy.result(timeout=60)
        growing = threading.Thread(target=_grow, args=(dask, f"{folder}/waits"))
        growing.start()
        print("grown", run(client, grows, f"{folder}/waits", num_workers=2, max_workers=3))
        growing.join(60)
        delayed_by = client.submit(time.sleep, 2, workers=[min(client.nthreads())], pure=False)
        print("early", run(client, grows, f"{folder}/early", num_workers=2, max_workers=3))
        delayed_by.result(timeout=60)
        print("lost", sorted(run(client, loses_a_worker, f"{folder}/killed", num_workers=3)))
        cancelling = threading.Thread(target=_cancel, args=(client, f"{folder}/begun"))
        cancelling.start()
        print("cancelled", refused(lambda: run(client, meets_on, f"{folder}/begun")))
        cancelling.join(60)
        print("environment", sorted(set(client.run(os.environ.get, "RANK").values())))


def _cancel(client: Any, begun: str) -> None:
    if appears(begun):
        client.cancel([Future(key, client) for key in client.futures], force=True)


def _grow(dask: DaskIntegration, waits: str) -> None:
    if appears(waits):
        dask.scale_cluster(3)


if __name__ == "__main__":
    main(sys.argv[1])
