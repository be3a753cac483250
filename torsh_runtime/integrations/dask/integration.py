"""Defines DaskIntegration, which starts or uses a Dask cluster and runs functions on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from distributed import Client, Future, LocalCluster, wait

from torsh_runtime.comm.timeouts import seconds
from torsh_runtime.errors import ConfigError, WorkerFailed
from torsh_runtime.integrations.dask.running import run
from torsh_runtime.integrations.dask.workers import addresses, check_client

_PAUSE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskConfig:
    """Configures the workers of a cluster on this machine."""

    num_workers: int = 2
    """Number of workers, each a process."""
    threads_per_worker: int = 1
    """Number of tasks that a worker runs at once. A rank is one such task."""
    memory_limit: str | int | float = "auto"
    """Memory of each worker as LocalCluster takes it, such as "2GiB"; 0 means no limit."""
    start_timeout: float = 60.0
    """Seconds within which requested workers must have started."""

    def __post_init__(self) -> None:
        for name in ("num_workers", "threads_per_worker"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number from 1 on, not {value!r}")
        seconds(self.start_timeout, self.start_timeout, "start_timeout")


class DaskIntegration:
    """Starts or uses a Dask cluster, and runs functions on it.

        with DaskIntegration(DaskConfig(num_workers=4)) as dask:
            losses = dask.run_training(train, "checkpoints")

    Given a client, it uses that client's cluster and leaves it running when it is closed.
    """

    def __init__(self, config: DaskConfig | None = None, *, client: Any = None) -> None:
        """Start a cluster on this machine, or use the cluster of `client`.

        Raises ConfigError if both `config` and `client` are given, or if the client cannot be used.
        """
        if config is not None and client is not None:
            raise ConfigError("give a config, for a new cluster, or a client, and not both")
        if client is not None:
            check_client(client)
        self._config = config or DaskConfig()
        self._cluster: Any = None
        self._client: Any = client or self._start()

    def _start(self) -> Any:
        config = self._config
        self._cluster = LocalCluster(
            n_workers=config.num_workers,
            threads_per_worker=config.threads_per_worker,
            memory_limit=config.memory_limit,
            processes=True,
            dashboard_address=None,
        )
        return Client(self._cluster, timeout=config.start_timeout)

    @property
    def client(self) -> Any:
        """Return the Dask client."""
        return self._client

    @property
    def num_workers(self) -> int:
        """Return the current number of workers."""
        return len(addresses(self._client))

    def run_training(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Call run() with this client."""
        return run(self._client, function, *args, **options)

    def submit_task(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Have any worker call the function, and return Dask's Future.

        Options are those of Client.submit().
        """
        return self._client.submit(function, *args, **options)

    def compute(self, collection: Any, timeout: float | None = None) -> Any:
        """Have the workers compute a Dask collection or a list of them, and return the values.

        Anything that is not a collection is returned unchanged. `timeout` is in seconds; None waits
        as long as the workers take. Raises TimeoutError when it has passed.
        """
        many = isinstance(collection, list | tuple)
        begun = self._client.compute(list(collection) if many else [collection])
        futures = [each for each in begun if isinstance(each, Future)]
        try:
            if futures:
                wait(futures, timeout)
        except TimeoutError:
            raise TimeoutError(f"the workers have not computed it within {timeout:g} s") from None
        values = self._client.gather(begun)
        return values if many else values[0]

    def scale_cluster(self, num_workers: int) -> None:
        """Scale the cluster to `num_workers`, and return once it has exactly that number.

        Raises ConfigError for a number below one, or if the client's cluster cannot be scaled from
        here; WorkerFailed, with the requested and current numbers, after start_timeout.
        """
        if type(num_workers) is not int or num_workers < 1:
            raise ConfigError(f"num_workers must be a whole number from 1 on, not {num_workers!r}")
        cluster = self._client.cluster
        if cluster is None:
            raise ConfigError(
                "this client was connected by an address, so its cluster cannot be scaled from "
                "here: make the client with the cluster, Client(cluster)"
            )
        cluster.scale(num_workers)
        deadline = time.monotonic() + self._config.start_timeout
        while self.num_workers != num_workers:
            if time.monotonic() > deadline:
                raise WorkerFailed(
                    f"{num_workers} Dask workers were asked for and {self.num_workers} are there "
                    f"after {self._config.start_timeout:g} s"
                )
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Stop the cluster and all its processes if this object started it."""
        if self._cluster is not None:
            self._client.close()
            self._cluster.close(timeout=self._config.start_timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
