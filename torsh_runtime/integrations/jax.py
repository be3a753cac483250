"""Makes jax.distributed.initialize() work under torshrun without arguments.

JAX asks its registered clusters in turn for the place of a process. register() adds one that reads
the environment set by torshrun's agent. It puts this one first, as JAX would take the agent for the
worker inside a Slurm job. Workers register when they import JAX (torshrun/workers/startup); only a
Python that ignores the environment (-I, -E, -S) has to call register().
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

NAME = "torshrun"
_NEEDED = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def register() -> None:
    """Make JAX look for its place among torshrun's variables first. Calling it again is harmless.

    Raises ImportError if JAX is not installed, or is too old to know clusters.
    """
    base: Any = import_module("jax._src.clusters").ClusterEnv
    known = base._cluster_types
    if not any(cluster.name == NAME for cluster in known):
        cluster = _make_cluster(base)  # JAX adds each subclass to its list, at the end
        known.remove(cluster)
        known.insert(0, cluster)


def _make_cluster(base: Any) -> Any:
    class TorshrunCluster(base):  # type: ignore[misc]
        """Gives a process's place as its agent set it."""

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
            """Return the only GPU for this process; None, for all, if it is alone on its node."""
            if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1:
                return None
            return int(os.environ.get("LOCAL_RANK", "0"))

    return TorshrunCluster
