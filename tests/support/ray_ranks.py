"""Ranks in Ray's workers and actors, on two nodes: what comes of each scene is a line of output."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.cluster_utils import Cluster

import torsh_runtime as tr
import torsh_runtime.integrations.ray.collective as collective
from torsh_runtime.errors import TorshError
from torsh_runtime.integrations.ray import RayConfig, RayIntegration
from torsh_runtime.integrations.ray.transport import (
    create_collective_group,
    register_tensor_transport,
)

STORE = 80 * 2**20
register_tensor_transport()


def train(config: dict[str, Any]) -> None:
    """Four steps, each kept by Ray; in the third one rank 1 kills itself, once."""
    step, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as kept:
            step = int(Path(kept, "step").read_text())
    ranks = f"rank {tr.get_rank()} of {tr.get_world_size()}, node {os.environ['GROUP_RANK']}"
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    note(config, f"{ranks}, restart {restarts}, is resumed {step > 0}")
    while step < 4:
        step += 1
        if step == 3 and tr.get_rank() == 1 and not Path(config["folder"], "killed").exists():
            await_checkpoint(config)
            Path(config["folder"], "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        total = np.ones(2)
        try:
            tr.all_reduce(total)
        except tr.PeerLost as error:
            note(config, f"PeerLost {error.rank}")
            raise
        report(step, float(total[0]))


def await_checkpoint(config: dict[str, Any]) -> None:
    """Until Ray's controller has noted one."""
    end = time.monotonic() + 60
    while not [*Path(config["folder"], "ray").glob("*/checkpoint_manager_snapshot.json")]:
        assert time.monotonic() < end
        time.sleep(0.1)


def note(config: dict[str, Any], text: str) -> None:
    with Path(config["folder"], "notes").open("a") as file:
        file.write(f"{text}\n")


def report(step: int, total: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if tr.get_rank() == 0:
            Path(folder, "step").write_text(str(step))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step, "total": total}, checkpoint=checkpoint)


def descend(config: dict[str, Any]) -> None:
    """What is tuned."""
    total = np.full(1, config["x"])
    tr.all_reduce(total)
    ray.train.report({"loss": float(total[0])})


@ray.remote(num_cpus=1, enable_tensor_transport=True)
class Member:
    """An actor of a group."""

    def meet(self, world_size: int, rank: int) -> None:
        collective.init_collective_group(world_size, rank, "gloo", "here")

    def all(self, group: str) -> list[Any]:
        """All operations."""
        rank = float(collective.get_rank(group))
        total, root, mine = np.full(2, rank + 1), np.full(2, rank), np.zeros(2)
        parts = [np.zeros(2) for _ in range(2)]
        collective.allreduce(total, group)
        collective.broadcast(root, 1, group)
        collective.allgather(parts, np.full(2, rank), group)
        collective.reducescatter(mine, [np.full(2, 1.0), np.full(2, 2.0)], group)
        highest = np.full(2, rank)
        collective.process_group(group).all_reduce(highest, tr.ReduceOp.MAX)
        collective.barrier(group)
        found = [total, root, parts[1], mine, highest]
        return [float(each[0]) for each in found]

    @ray.method(tensor_transport="torsh")
    def tensor(self) -> Any:
        import torch

        return torch.arange(1000.0)

    def total(self, tensor: Any) -> float:
        return float(tensor.sum())

    def leave(self, group: str) -> None:
        collective.destroy_collective_group(group)


def refused(call: Any) -> str:
    try:
        return f"none: {call()}"
    except TorshError as error:
        return f"{type(error).__name__}: {error}"


def actors() -> None:
    """Groups that actors make themselves, and one that is made of them."""
    members = [Member.remote() for _ in range(2)]
    ray.get([each.meet.remote(2, rank) for rank, each in enumerate(members)], timeout=100)
    print("imperative", ray.get([each.all.remote("here") for each in members], timeout=100))
    ray.get([each.leave.remote("here") for each in members], timeout=100)
    create_collective_group(members, "made")
    print("made", ray.get([each.all.remote("made") for each in members], timeout=100))
    print("tensor", ray.get(members[1].total.remote(members[0].tensor.remote()), timeout=100))
    print("nccl", refused(lambda: collective.create_collective_group([], 0, [], "nccl")))
    for each in members:
        ray.kill(each)


def main(folder: str) -> None:
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(address=cluster.address, log_to_driver=False)
        actors()
        config = {"folder": folder}
        many = RayIntegration(RayConfig(num_workers=3))
        print("few", refused(lambda: many.run_training(train, config)))
        two = RayIntegration(RayConfig(num_workers=2, storage_path=f"{folder}/ray"))
        print("trained", two.run_training(train, config).metrics)
        one = RayIntegration(RayConfig(storage_path=f"{folder}/ray"))
        space = {"x": tune.uniform(0, 1)}
        found = one.run_tuning(
            descend, space, metric="loss", num_samples=2, search=sys.argv[2], scheduler="asha"
        )
        print(
            "tuned", len(found), found.num_errors, 0 < found.get_best_result().metrics["loss"] < 1
        )
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
