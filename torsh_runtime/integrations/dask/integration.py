"""DaskIntegration: a Dask cluster, and what runs on it."""

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
    """The workers of a cluster on this machine."""

    num_workers: int = 2
    """Number of workers, each a process."""
    threads_per_worker: int = 1
    """How many tasks a worker runs at once. A rank is one of them."""
    memory_limit: str | int | float = "auto"
    """Each worker's memory, as LocalCluster takes it, such as "2GiB"; 0 is no limit."""
    start_timeout: float = 60.0
    """Seconds until workers that were asked for must be there."""

    def __post_init__(self) -> None:
        for name in ("num_workers", "threads_per_worker"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number from 1 on, not {value!r}")
        seconds(self.start_timeout, self.start_timeout, "start_timeout")


class DaskIntegration:
    """A Dask cluster, and what runs on it.

        with DaskIntegration(DaskConfig(num_workers=4)) as dask:
            losses = dask.run_training(train, "checkpoints")

    With a client it works on that client's cluster, which stays when it is closed.
    """

    def __init__(self, config: DaskConfig | None = None, *, client: Any = None) -> None:
        """A cluster on this machine, or the client's. ConfigError for both."""
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
        """The Dask client."""
        return self._client

    @property
    def num_workers(self) -> int:
        """How many workers are there now."""
        return len(addresses(self._client))

    def run_training(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """As run(), with this client."""
        return run(self._client, function, *args, **options)

    def submit_task(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Have any worker call the function; returns Dask's Future. Options are Client.submit's."""
        return self._client.submit(function, *args, **options)

    def compute(self, collection: Any, timeout: float | None = None) -> Any:
        """The value of a Dask collection, or of a list of them, computed by the workers. Values
        that are none are returned as they are.

        timeout: seconds, or None: as long as the workers take. TimeoutError when it has passed.
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
        """Have so many workers from now on, and return when they are there and no more.

        Raises ConfigError for less than one, or where the client's cluster is not to be scaled from
        here; WorkerFailed, naming how many were asked for and are there, after start_timeout.
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
        """End the cluster, if it was started here, and with it all its processes."""
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
