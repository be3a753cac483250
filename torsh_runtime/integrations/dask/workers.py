"""Lists the workers of a Dask cluster, and calls functions in their processes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from distributed import Client

from torsh_runtime.errors import ConfigError, WorkerFailed
from torsh_runtime.integrations import placed
from torsh_runtime.integrations.placed import Place, Rendezvous
from torsh_runtime.store.hosted import HostedStore

ANSWER = 30.0
"""Seconds that a worker's process may take to answer."""
_served: dict[str, HostedStore] = {}
"""The stores that this worker's process serves, by endpoint."""


def check_client(client: Any) -> None:
    """Raise ConfigError unless `client` is a synchronous dask.distributed.Client."""
    if not isinstance(client, Client):
        raise ConfigError(
            f"a dask.distributed.Client is needed, and {client!r} is none: make one, "
            f"Client(cluster) or Client(address)"
        )
    if client.asynchronous:
        raise ConfigError("the Dask client is asynchronous: make one without asynchronous=True")


def addresses(client: Any) -> list[str]:
    """Return the addresses of the cluster's workers, sorted.

    Raises WorkerFailed if its scheduler is gone.
    """
    try:
        return sorted(client.nthreads())
    except (OSError, TimeoutError) as error:
        raise WorkerFailed(f"the Dask scheduler has gone or does not answer ({error})") from error


def call(client: Any, workers: Sequence[str], function: Callable[..., Any], *args: Any) -> Any:
    """Call the function in each worker's process, and return the results by address.

    The call runs at once, beside the worker's tasks. Raises WorkerFailed if a worker leaves or does
    not answer.
    """

    async def calling() -> Any:
        return await client.run(function, *args, workers=list(workers))

    try:
        return client.sync(calling, callback_timeout=ANSWER)
    except (OSError, TimeoutError) as error:
        raise WorkerFailed(
            f"a Dask worker of {', '.join(workers)} has gone or did not answer within "
            f"{ANSWER:g} s ({error})"
        ) from error


def places(client: Any, workers: Sequence[str]) -> list[Place]:
    """Return the places of these workers. Raises ConfigError if several are one process."""
    found: dict[str, Place] = {}
    if not any(address.startswith("inproc:") for address in workers):
        found = call(client, workers, _here)
    if len({(place.host, place.node, place.pid) for place in found.values()}) < len(workers):
        raise ConfigError(
            "the Dask workers are threads of one process, which can be one rank only: make the "
            "cluster with processes, LocalCluster(processes=True)"
        )
    return [found[address] for address in workers]


def serve(host: str) -> Rendezvous:
    """Serve a job's store in this process until stop_serving()."""
    rendezvous, hosted = placed.serve(host)
    _served[rendezvous.endpoint] = hosted
    return rendezvous


def stop_serving(endpoint: str) -> None:
    """Stop the store that serve() started in this process."""
    hosted = _served.pop(endpoint, None)
    if hosted is not None:
        hosted.close()


def _here(dask_worker: Any) -> Place:
    return Place.here(urlsplit(dask_worker.address).hostname or "127.0.0.1", socket.gethostname())
