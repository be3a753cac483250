"""JAX under torshrun: jax.distributed.initialize() without arguments.

JAX asks its registered clusters in turn where a process stands. register() adds one that answers
from the environment that torshrun's agent sets, and puts it first, for inside a Slurm job JAX
would take the agent for the worker. Workers register by themselves when they import JAX
(torshrun/workers/startup); only a Python that ignores the environment (-I, -E, -S) has to call it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

NAME = "torshrun"
_NEEDED = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def register() -> None:
    """Make JAX look for its place among torshrun's variables first. Calling it again is harmless.

    ImportError if JAX is not installed, or is too old to know clusters.
    """
    base: Any = import_module("jax._src.clusters").ClusterEnv
    known = base._cluster_types
    if not any(cluster.name == NAME for cluster in known):
        cluster = _make_cluster(base)  # JAX adds each subclass to its list, at the end
        known.remove(cluster)
        known.insert(0, cluster)


def _make_cluster(base: Any) -> Any:
    class TorshrunCluster(base):  # type: ignore[misc]
        """A process's place, as its agent set it."""

        name = NAME

        @classmethod
        def is_env_present(cls) -> bool:
            return all(variable in os.environ for variable in _NEEDED)

        @classmethod
        def get_coordinator_address(cls, *_: Any, **__: Any) -> str:
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["JAX_PROCESS_ID"])

        @classmethod
        def get_local_process_id(cls) -> int | None:
            """The only GPU that the process is to see; None, which is all, if it is alone."""
            if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1:
                return None
            return int(os.environ.get("LOCAL_RANK", "0"))

    return TorshrunCluster
