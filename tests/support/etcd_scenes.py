"""Scenes with etcd stores: coroutines that a test plays to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from torsh_runtime.store.etcd import EtcdConfig, EtcdStore

PATIENCE = 60.0
"""Seconds after which a scene that does not end is given up."""


@asynccontextmanager
async def opened(*endpoints: str, **options: Any) -> AsyncGenerator[EtcdStore, None]:
    """A store over these endpoints."""
    store = EtcdStore(EtcdConfig(endpoints=endpoints, **options))
    try:
        yield store
    finally:
        await store.close()


def play(scene: Coroutine[Any, Any, None]) -> None:
    """Run the scene on a loop of its own."""

    async def guarded() -> None:
        async with asyncio.timeout(PATIENCE):
            await scene

    asyncio.run(guarded())
