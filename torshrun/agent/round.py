"""Creates what a round of workers has for itself, and the environment of its first worker here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address, LaunchConfig
from torshrun.failure.memory import MemoryWatch
from torshrun.health.pages import StatusPages
from torshrun.health.recordings import Recordings
from torshrun.rendezvous.base import NodeAssignment
from torshrun.rendezvous.served import ServedStore

STORE_BOUND = 2.0
"""Seconds that a round's store may take to close."""

ServeStore = Callable[[NodeAssignment], Awaitable[ServedStore]]
"""Gives the workers of a round here the round's store."""


class Round(NamedTuple):
    """A round's store, status pages, recordings and watch over memory."""

    number: int
    store: ServedStore
    pages: StatusPages
    recordings: Recordings
    memory: MemoryWatch

    @classmethod
    async def open(
        cls, serve_store: ServeStore, scratch: str, place: NodeAssignment, workers: int
    ) -> Round:
        """Make what a round needs. Raises OSError or a TorshError when that cannot be done."""
        try:
            pages = StatusPages(_status_file(scratch, place), workers)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"cannot write in {scratch} (TMPDIR says where): {reason}") from None
        recordings = Recordings.make(_status_file(scratch, place), workers)
        try:
            return cls(place.round, await serve_store(place), pages, recordings, MemoryWatch())
        except BaseException:
            pages.close()
            recordings.close()
            raise

    async def close(self) -> None:
        """Give everything back, within STORE_BOUND."""
        self.pages.close()
        self.recordings.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORE_BOUND):
                await self.store.close()


def first_worker(
    config: LaunchConfig,
    place: NodeAssignment,
    scratch: str,
    endpoint: str,
    secret: str,
    ends_at: float | None = None,
) -> WorkerEnv:
    """Return the environment of this node's first worker.

    `endpoint` and `secret` are those of its store, `ends_at` is when its time is over.
    """
    return WorkerEnv(
        rank=place.first_rank,
        world_size=place.world_size,
        local_rank=0,
        local_world_size=config.nproc_per_node,
        node_rank=place.node_rank,
        num_nodes=place.num_nodes,
        role_name=config.role,
        role_rank=place.role_first_rank,
        role_world_size=place.role_world_size,
        master_addr=place.master_addr,
        master_port=place.master_port,
        restart_count=place.restarts,
        max_restarts=config.max_restarts,
        run_id=config.run_id,
        round=place.round,
        store_endpoint=endpoint,
        secret=secret,
        scratch=scratch,
        status_file=_status_file(scratch, place),
        metrics_at=_metrics_at(config),
        jax_coordinator_port=place.jax_port,
        ends_at=ends_at,
    )


def _metrics_at(config: LaunchConfig) -> str:
    """Return a URL at which this node's agent serves metrics; "" if it does not."""
    if config.metrics_port is None:
        return ""
    host, port = config.metrics_port
    return f"http://{Address(host or '127.0.0.1', port)}/metrics"


def _status_file(scratch: str, place: NodeAssignment) -> str:
    return f"{scratch}/status_{place.round}"
