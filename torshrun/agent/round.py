"""What one round of workers has for itself, and what its first worker here is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torshrun.config import LaunchConfig
from torshrun.failure import MemoryWatch
from torshrun.health.pages import StatusPages
from torshrun.rendezvous.base import Place

STORE_BOUND = 2.0
"""Seconds that a round's store may take to close."""


class RoundStore(Protocol):
    """One round's store, while it is served to this node's workers."""

    @property
    def endpoint(self) -> str:
        """Where workers reach it."""

    @property
    def secret(self) -> str:
        """The job's secret in hexadecimal, which workers prove that they know."""

    async def close(self) -> None:
        """Stop serving it and forget its keys."""


ServeStore = Callable[[Place], Awaitable[RoundStore]]
"""Gives the workers of a round here the round's store."""


class Round:
    """A round's store, status pages and watch over memory."""

    def __init__(
        self, number: int, store: RoundStore, pages: StatusPages, status_file: str
    ) -> None:
        self.number = number
        self.store = store
        self.pages = pages
        self.status_file = status_file
        self.memory = MemoryWatch()

    @classmethod
    async def open(cls, serve_store: ServeStore, scratch: str, place: Place, workers: int) -> Round:
        """Make what a round needs. Raises OSError or a TorshError when that cannot be done."""
        status_file = f"{scratch}/status_{place.round}"
        try:
            pages = StatusPages.create(status_file, workers)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"cannot write in {scratch} (TMPDIR says where): {reason}") from None
        try:
            return cls(place.round, await serve_store(place), pages, status_file)
        except BaseException:
            pages.close()
            raise

    async def close(self) -> None:
        """Give everything back, within STORE_BOUND."""
        self.pages.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORE_BOUND):
                await self.store.close()


def first_worker(config: LaunchConfig, place: Place, a_round: Round, scratch: str) -> WorkerEnv:
    """The place of this node's first worker."""
    return WorkerEnv(
        rank=place.first_rank,
        world_size=place.world_size,
        local_rank=0,
        local_world_size=config.nproc_per_node,
        node_rank=place.node_rank,
        num_nodes=place.num_nodes,
        role_name=config.role,
        master_addr=place.master_addr,
        master_port=place.master_port,
        restart_count=place.restarts,
        max_restarts=config.max_restarts,
        run_id=config.run_id,
        round=place.round,
        store_endpoint=a_round.store.endpoint,
        secret=a_round.store.secret,
        scratch=scratch,
        status_file=a_round.status_file,
        jax_coordinator_port=place.jax_port,
    )
