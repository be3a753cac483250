"""A round's store, as this node's workers reach it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torsh_runtime.store.base import Store
    from torshrun.rendezvous.base import NodeAssignment


class ServedStore:
    """A store that is served to this node's workers over a socket without a file."""

    def __init__(
        self,
        store: Store,
        secret: bytes,
        release: Callable[[], Awaitable[None]],
        move: Callable[[NodeAssignment], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare to serve `store`; `release` gives up what it holds, after it was served.

        `move` has what the nodes have in common in the store of another round.
        """
        from torsh_runtime.store.server import StoreServer

        self.store = store
        self._server = StoreServer(store, secret)
        self._release, self._move = release, move
        self.secret = secret.hex()
        """What workers prove that they know, in hexadecimal."""
        self.endpoint = ""
        """Where workers reach it."""

    async def start(self) -> ServedStore:
        """Serve it from now on. StoreError when that cannot be done."""
        self.endpoint = await self._server.start(f"unix:@torsh-{os.urandom(8).hex()}")
        return self

    async def move(self, place: NodeAssignment) -> None:
        """Serve the store of this round to the same workers. StoreError when that cannot be done.

        They keep what they have in common with this agent alone.
        """
        if self._move is not None:
            await self._move(place)

    async def close(self) -> None:
        """Serve it no more, and release it."""
        await self._server.close()
        await self._release()


async def serve_fresh(secret: bytes) -> ServedStore:
    """Serve a new store in this process."""
    from torsh_runtime.store.memory import MemoryStore

    store = MemoryStore()
    return await ServedStore(store, secret, store.close).start()
