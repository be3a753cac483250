"""A round's store, as this node's workers reach it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torsh_runtime.store.base import Store


class ServedStore:
    """A store that is served to this node's workers over a socket without a file."""

    def __init__(self, store: Store, secret: bytes, release: Callable[[], Awaitable[None]]) -> None:
        """Prepare to serve `store`; `release` gives up what it holds, after it was served."""
        from torsh_runtime.store.server import StoreServer

        self.store = store
        self._server = StoreServer(store, secret)
        self._release = release
        self.secret = secret.hex()
        """What workers prove that they know, in hexadecimal."""
        self.endpoint = ""
        """Where workers reach it."""

    async def start(self) -> ServedStore:
        """Serve it from now on. StoreError when that cannot be done."""
        self.endpoint = await self._server.start(f"unix:@torsh-{os.urandom(8).hex()}")
        return self

    async def close(self) -> None:
        """Serve it no more, and release it."""
        await self._server.close()
        await self._release()


async def serve_fresh(secret: bytes) -> ServedStore:
    """Serve a new store in this process."""
    from torsh_runtime.store.memory import MemoryStore

    store = MemoryStore()
    return await ServedStore(store, secret, store.close).start()
