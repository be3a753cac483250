"""Growth of the job at its checkpoints only, if its workers ask for that."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing, suppress

from torsh_runtime.contract import CHECKPOINT_KEY
from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Store
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import Wanted

_END_TIMEOUT = 2.0
"""Seconds that giving the lease back may take."""


class Growth:
    """Tells the leader when this job may grow: as long as a key of this node's stands, it may not.

    The workers of node rank 0 write to the round's store for how many seconds it may from then on;
    once they have done so it may not at other times. Before that, and in a round whose workers do
    not, nothing is written.
    """

    def __init__(self, store: Store, key: str, ttl: float) -> None:
        """`store` is the one where nodes meet. The key vanishes `ttl` seconds after this agent."""
        self._store = store
        self._key = key
        self._ttl = ttl
        self._is_held = False
        self._lease = 0
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, round_store: Store) -> None:
        """Take what this round's workers write, until unfollow()."""
        self._following = asyncio.get_running_loop().create_task(self._follow(round_store))

    def unfollow(self) -> None:
        """The workers have ended: nothing holds the job's growth."""
        if self._following:
            self._following.cancel()
        self._hold(False)

    async def close(self) -> None:
        """Let go of the key."""
        self.unfollow()
        tasks = [task for task in (self._following, self._keeping) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT):
                await self._write()

    async def _follow(self, round_store: Store) -> None:
        with suppress(StoreError):  # it is in this process: it ends when this node's part does
            items, revision = await round_store.list(CHECKPOINT_KEY)
            for item in items:
                self._take(item.value)
            async with aclosing(round_store.watch(CHECKPOINT_KEY, revision)) as events:
                async for event in events:
                    self._take(event.value)

    def _take(self, value: bytes) -> None:
        """The job may grow for so many seconds; what is no such number is not for us."""
        try:
            seconds = float(value)
        except ValueError:
            return
        if 0 <= seconds < math.inf:
            self._hold(False)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._hold, True)

    def _hold(self, is_held: bool) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer, self._is_held = None, is_held
        self._changed.set()
        if is_held and self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        """Keep the key as it is to be. The store may come and go."""
        while True:
            self._changed.clear()
            try:
                await self._write()
            except StoreError:
                self._lease = 0  # what is left of it ends by itself
            with suppress(TimeoutError):
                async with asyncio.timeout(self._ttl / 4 if self._is_held else None):
                    await self._changed.wait()

    async def _write(self) -> None:
        if self._is_held and self._lease:
            await self._store.keep_alive(self._lease)
        elif self._is_held:
            self._lease = await self._store.grant(self._ttl)
            await self._store.put(self._key, rows.encode(Wanted()), self._lease)
        elif self._lease:
            await self._store.revoke(self._lease)
            self._lease = 0
