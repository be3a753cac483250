"""Defines TorshConfig and TorshTrainer, with which ray.train's workers are ranks of one job."""

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
"""True if Ray Train is the one with a controller (Train V2)."""
_HOME = "ray.train.v2.api.data_parallel_trainer" if IS_V2 else "ray.train.data_parallel_trainer"
_DataParallelTrainer: Any = import_module(_HOME).DataParallelTrainer
_GRACE = 30.0
"""Seconds beyond their own timeout for workers to report the ranks that did not connect."""
_LEAVE = 10.0
"""Seconds that workers may take to leave their group."""


@dataclass
class TorshConfig(BackendConfig):
    """Makes a DataParallelTrainer's workers the ranks of one job, as its backend_config.

    The function that the workers call has a default group, so torsh_runtime's functions and
    wrappers work in it. The loss of a worker raises PeerLost on the others, and then Ray restarts
    them as FailureConfig says.
    """

    backend: str | None = None
    """The backend, as for init_process_group()."""
    timeout_s: float = 1800.0
    """Seconds for each operation and for connecting the ranks."""

    def __post_init__(self) -> None:
        seconds(self.timeout_s, self.timeout_s, "timeout_s")

    @property
    def backend_cls(self) -> type[TorshBackend]:
        """Return the class that Ray calls."""
        return TorshBackend

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that Ray's state API shows."""
        return {"backend": self.backend, "timeout_s": self.timeout_s}


class TorshBackend(Backend):
    """Serves the workers' store, and is called by Ray when a group of workers starts and ends."""

    def __init__(self) -> None:
        self._stores: dict[int, HostedStore] = {}  # by id; empty while Ray pickles this
        self._starts = 0

    def on_start(self, worker_group: Any, backend_config: TorshConfig) -> None:
        """Make the workers ranks. Raises the errors of init_process_group() on them.

        Raises CommTimeout naming the ranks that did not answer in time.
        """
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
        """Have the remaining workers leave their group, and stop their store."""
        try:
            leaving = worker_group.execute_async(leave)
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE)
        finally:
            hosted = self._stores.pop(id(worker_group), None)
            if hosted is not None:
                hosted.close()


class TorshTrainer(_DataParallelTrainer):
    """Extends Ray's DataParallelTrainer by a TorshConfig, as TorchTrainer does by a TorchConfig.

    The function that the workers call has torsh_runtime's default group.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        torsh_config: TorshConfig | None = None,
        **options: Any,
    ) -> None:
        """Take the function that the workers call, and the trainer's settings.

        `options`: scaling_config, run_config, train_loop_config and further arguments of
        TorchTrainer.
        """
        config = torsh_config or TorshConfig()
        super().__init__(train_loop_per_worker, backend_config=config, **options)


def _here() -> Place:
    return Place.here(_address(), ray.get_runtime_context().get_node_id())


def _address() -> str:
    """Return the address at which other nodes reach this one."""
    return str(ray.util.get_node_ip_address())
