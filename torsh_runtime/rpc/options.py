"""Defines names and options as torch.distributed.rpc has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError

DEFAULT_RPC_TIMEOUT = 60.0
"""Seconds that a call may take, as in torch."""
DEFAULT_NUM_WORKER_THREADS = 16
UNSET_RPC_TIMEOUT = -1.0
"""The value in place of a timeout that stands for that of RpcBackendOptions."""


_NO_DEVICE_MAPS = (
    "device maps are not supported: arrays of GPUs travel through the host's memory and arrive on "
    "the receiver's current device; leave device_maps out"
)


class BackendType(Enum):
    """Names backends for programs written for torch. The only one is torsh_runtime's own.

    Example:
        ```python
        tr.rpc.init_rpc("worker0", tr.rpc.BackendType.TENSORPIPE, rank=0, world_size=1)
        ```
    """

    TORSH = "torsh"
    TENSORPIPE = "tensorpipe"
    """torch's name of its backend; it makes no difference here."""


class WorkerInfo(NamedTuple):
    """Holds name and id of a worker that can be called.

    Example:
        ```python
        info = tr.rpc.get_worker_info("worker1")
        tr.rpc.rpc_sync(info, evaluate)
        ```
    """

    name: str
    """The worker's name."""
    id: int
    """Rank of the worker, 0 or more."""


@dataclass(frozen=True)
class RpcBackendOptions:
    """Holds options for making and serving calls in this process.

    Raises:
        ConfigError: For invalid values.

    Example:
        ```python
        options = tr.rpc.RpcBackendOptions(num_worker_threads=4, rpc_timeout=120)
        tr.rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)
        ```
    """

    num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS
    """Functions that run at a time for others. A function that waits for a call of its own does not
    count, so calls may be nested to any depth."""
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT
    """Seconds that a call may take if it is given no timeout. 0 means no limit."""
    init_method: str = "env://"
    """The place to rendezvous, in the form that init_process_group() takes."""
    device_maps: Any = None
    """For programs written for torch; must be None or empty. Arrays of GPUs travel through the
    host's memory and arrive on the receiver's current device."""
    devices: Any = None
    """For programs written for torch; has no effect."""
    _transports: Any = None
    """For programs written for torch; has no effect."""
    _channels: Any = None
    """For programs written for torch; has no effect."""

    def __post_init__(self) -> None:
        if self.device_maps:
            raise ConfigError(_NO_DEVICE_MAPS)
        if type(self.num_worker_threads) is not int or not 0 < self.num_worker_threads <= 4096:
            raise ConfigError(
                f"num_worker_threads is {self.num_worker_threads!r}; it must be from 1 to 4096"
            )
        object.__setattr__(self, "rpc_timeout", seconds(self.rpc_timeout, DEFAULT_RPC_TIMEOUT))

    def set_device_map(self, to: str, device_map: object) -> None:
        """Raise ConfigError; the method exists for programs written for torch.

        Args:
            to: A worker's name.
            device_map: Devices by device.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(_NO_DEVICE_MAPS)


def seconds(timeout: float | timedelta | None, default: float) -> float:
    """Return the seconds of a timeout that a user gave.

    It is `default` for None and UNSET_RPC_TIMEOUT, and inf for 0. Raises ConfigError if it is no
    number of seconds.
    """
    if timeout is None or timeout == UNSET_RPC_TIMEOUT:
        return default
    try:
        value = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    except (TypeError, ValueError):
        value = math.nan
    if not value >= 0:
        raise ConfigError(f"timeout {timeout!r} is no number of seconds, 0 or more")
    return value or math.inf
