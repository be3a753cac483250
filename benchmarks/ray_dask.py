"""Measures ranks on Ray and on Dask: trainings with a killed worker, and collectives of actors.

`python -m benchmarks.ray_dask --what ray,collectives,dask --bars`. Ray: digits by 4 workers on 2
nodes of one machine, undisturbed and with a worker killed; both must end with the same accuracy.
Collectives: all_reduce of 1 MiB between actors, by ours and by ray.util.collective (gloo). Dask:
digits by 2 workers, one of which is killed, and then 4; each row must be taken once in each epoch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Check, all_pass, summary
from benchmarks.ray_dask_training import EPOCHS, Disturbance, by_dask, by_ray

STORE = 80 * 2**20
"""Bytes of each Ray node's object store."""
PARTS = ("ray", "collectives", "dask")
_PATIENCE = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--what", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=200, help="of an all_reduce")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is missed")
    options = parser.parse_args()
    found: list[Check] = []
    parts = options.what.split(",")
    if "dask" in parts:
        found += dask_training()
    if {"ray", "collectives"} & {*parts}:
        with ray_cluster():
            found += ray_training() if "ray" in parts else []
            found += collectives(options.rounds) if "collectives" in parts else []
    print(summary(found))
    for check in found:
        print(f"  {check}")
    return int(options.bars and not all_pass(found))


@contextmanager
def ray_cluster() -> Iterator[None]:
    """Start two nodes of two processors each, in Ray's sense, on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=2, object_store_memory=STORE)
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def ray_training() -> list[Check]:
    """Train with and without a killed worker."""
    from torsh_runtime.integrations.ray import RayConfig, RayIntegration

    results = []
    for kill_at in (None, 50):
        with tempfile.TemporaryDirectory() as folder:
            disturbance = Disturbance(folder, kill_at)
            config = RayConfig(num_workers=4, storage_path=folder)
            start = time.perf_counter()
            result = RayIntegration(config).run_training(by_ray, {"disturbance": disturbance})
            metrics, starts = result.metrics, disturbance.starts()
            results.append(metrics["accuracy"])
            print(f"Ray, killed at {kill_at}: {metrics}, (ranks, step) at starts: {starts}, "
                  f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    bar = "Ray: a worker killed"
    return [
        Check("starts", len(starts), 2, bar=bar),
        Check("step that it goes on from", starts[-1][1], 1, bar=bar),
        Check("difference in accuracy", abs(results[1] - results[0]), 0, True, bar),
        *_each_row_once(metrics, bar),
    ]


def dask_training() -> list[Check]:
    """Train with two workers, one of which is killed, and then with four."""
    from torsh_runtime.integrations.dask import DaskConfig, DaskIntegration

    with tempfile.TemporaryDirectory() as folder:
        disturbance = Disturbance(folder, kill_at=30, hold_at=80, hold_for=4)
        with DaskIntegration(DaskConfig(num_workers=2)) as dask:
            growing = threading.Thread(target=_grow, args=(dask, Path(folder, "holding")))
            growing.start()
            start = time.perf_counter()
            options = {"num_workers": 2, "max_workers": 4}
            results = dask.run_training(by_dask, folder + "/kept", disturbance, **options)
            growing.join(_PATIENCE)
        starts = disturbance.starts()
    print(f"Dask: {results[0]}, (ranks, step) at starts: {starts}, "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    bar = "Dask: a worker killed, and from 2 to 4"
    return [
        Check("ranks at first", starts[0][0], 2, bar=bar),
        Check("ranks at last", starts[-1][0], 4, bar=bar),
        Check("least step that it goes on from", min(each[1] for each in starts[1:]), 1, bar=bar),
        Check("accuracy", results[0]["accuracy"], 0.85, bar=bar),
        *_each_row_once(results[0], bar),
    ]


def _grow(dask: Any, holding: Path) -> None:
    """Scale to four workers once the training waits for them."""
    end = time.monotonic() + _PATIENCE
    while not holding.exists() and time.monotonic() < end:
        time.sleep(0.1)
    dask.scale_cluster(4)


def _each_row_once(metrics: dict[str, float], bar: str) -> list[Check]:
    return [
        Check("least times that a row was taken", metrics["least"], EPOCHS, bar=bar),
        Check("most times that a row was taken", metrics["most"], EPOCHS, True, bar),
    ]


def collectives(rounds: int) -> list[Check]:
    """Measure an all_reduce of 1 MiB by as many actors."""
    import ray

    found = []
    for actors in (2, 4):
        medians = {}
        for module in ("ray.util.collective", "torsh_runtime.integrations.ray.collective"):
            members = [ray.remote(Reducing).remote(module) for _ in range(actors)]
            names = [each.meet.remote(actors, rank) for rank, each in enumerate(members)]
            ray.get(names, timeout=_PATIENCE)
            times = ray.get([each.time.remote(rounds) for each in members], timeout=_PATIENCE)
            medians[module] = max(times)
            for each in members:
                ray.kill(each)
        theirs, ours = medians.values()
        print(f"all_reduce of 1 MiB, {actors} actors: gloo {theirs:.0f} us, ours {ours:.0f} us")
        bar = "all_reduce of 1 MiB between actors, times ray.util.collective (gloo)"
        found.append(Check(f"{actors} actors", theirs / ours, 6, bar=bar))
    return found


class Reducing:
    """Runs all_reduces in an actor."""

    def __init__(self, module: str) -> None:
        import importlib

        self._collective = importlib.import_module(module)
        self._values = np.zeros(2**18, np.float32)

    def meet(self, world_size: int, rank: int) -> None:
        """Become a rank of the group."""
        self._collective.init_collective_group(world_size, rank, "gloo", "default")
        ones = np.full(4, rank + 1.0, np.float32)
        self._collective.allreduce(ones)
        assert ones[0] == world_size * (world_size + 1) / 2, ones

    def time(self, rounds: int) -> float:
        """Return the median of back-to-back all_reduces in microseconds."""
        taken = []
        for _ in range(rounds):
            start = time.perf_counter()
            self._collective.allreduce(self._values)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken) * 1e6


if __name__ == "__main__":
    sys.exit(main())
