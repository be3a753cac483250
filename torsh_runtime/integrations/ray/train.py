"""TorshConfig and TorshTrainer: workers of ray.train as ranks with a default group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from torsh_runtime.comm.timeouts import seconds
from torsh_runtime.errors import CommTimeout
from torsh_runtime.integrations.placed import Place, enter, leave, serve
from torsh_runtime.store.hosted import HostedStore

IS_V2: bool = import_module("ray.train.v2._internal.constants").is_v2_enabled()
"""Whether Ray Train is the one with a controller (Train V2)."""
_HOME = "ray.train.v2.api.data_parallel_trainer" if IS_V2 else "ray.train.data_parallel_trainer"
_DataParallelTrainer: Any = import_module(_HOME).DataParallelTrainer
_GRACE = 30.0
"""Seconds beyond their own timeout in which workers tell who did not come."""
_LEAVE = 10.0
"""Seconds that workers may take to leave their group."""


@dataclass
class TorshConfig(BackendConfig):
    """What makes the workers of a DataParallelTrainer ranks of one job with a default group, as its
    backend_config.

    In the function that they call the default group is there: torsh_runtime's functions and
    wrappers work. A worker that is lost is PeerLost on the others, after which Ray begins again as
    FailureConfig says.
    """

    backend: str | None = None
    """As init_process_group() takes it."""
    timeout_s: float = 1800.0
    """Seconds for each operation and for meeting the others."""

    def __post_init__(self) -> None:
        seconds(self.timeout_s, self.timeout_s, "timeout_s")

    @property
    def backend_cls(self) -> type[TorshBackend]:
        """Ray's end of it."""
        return TorshBackend

    def to_dict(self) -> dict[str, Any]:
        """What Ray's state shows of it."""
        return {"backend": self.backend, "timeout_s": self.timeout_s}


class TorshBackend(Backend):
    """What Ray calls when a group of workers begins and ends. Its process serves their store."""

    def __init__(self) -> None:
        self._stores: dict[int, HostedStore] = {}  # by id; empty while Ray pickles this
        self._starts = 0

    def on_start(self, worker_group: Any, backend_config: TorshConfig) -> None:
        """Make the workers ranks. Raises what init_process_group() raises there."""
        places = worker_group.execute(_here)
        rendezvous, self._stores[id(worker_group)] = serve(_address())
        timeout = backend_config.timeout_s
        entering = [
            worker_group.execute_single_async(rank, enter, env, backend_config.backend, timeout)
            for rank, env in enumerate(rendezvous.environments(places, "ray", self._starts))
        ]
        self._starts += 1
        try:
            ray.get(entering, timeout=timeout + _GRACE)
        except ray.exceptions.GetTimeoutError:
            _, late = ray.wait(entering, num_returns=len(entering), timeout=0)
            missing = [rank for rank, each in enumerate(entering) if each in late]
            raise CommTimeout("init_process_group", 0, timeout, missing) from None

    def on_shutdown(self, worker_group: Any, backend_config: TorshConfig) -> None:
        """Have the workers leave that are there still, and end their store."""
        try:
            leaving = worker_group.execute_async(leave)
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE)
        finally:
            hosted = self._stores.pop(id(worker_group), None)
            if hosted is not None:
                hosted.close()


class TorshTrainer(_DataParallelTrainer):
    """Ray's DataParallelTrainer with a TorshConfig, as TorchTrainer is the one with a TorchConfig:
    the function that the workers call has torsh_runtime's default group.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        torsh_config: TorshConfig | None = None,
        **options: Any,
    ) -> None:
        """`options`: scaling_config, run_config, train_loop_config and what else TorchTrainer
        takes."""
        config = torsh_config or TorshConfig()
        super().__init__(train_loop_per_worker, backend_config=config, **options)


def _here() -> Place:
    return Place.here(_address(), ray.get_runtime_context().get_node_id())


def _address() -> str:
    """Where other nodes reach this one."""
    return str(ray.util.get_node_ip_address())
