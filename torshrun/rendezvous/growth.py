"""Growth of the job at its checkpoints only, if its workers ask for that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import aclosing, suppress

from torsh_runtime.contract import CHECKPOINT_KEY
from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Store


class Growth:
    """Controls whether this node holds the job's growth.

    The workers of node rank 0 write to the round's store for how many seconds it may grow from then
    on. Once they have, it may not grow at other times; before that there is no limit.
    """

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._hold = hold
        self._following: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, round_store: Store) -> None:
        """Take what this round's workers write, until unfollow()."""
        self._following = asyncio.get_running_loop().create_task(self._follow(round_store))

    def unfollow(self) -> None:
        """Stop following: the workers have ended, and nothing holds the job's growth any more."""
        if self._following:
            self._following.cancel()
        self._let_go()

    async def _follow(self, round_store: Store) -> None:
        with suppress(StoreError):  # it is in this process: it ends when this node's part does
            items, revision = await round_store.list(CHECKPOINT_KEY)
            for item in items:
                self._take(item.value)
            async with aclosing(round_store.watch(CHECKPOINT_KEY, revision)) as events:
                async for event in events:
                    self._take(event.value)

    def _take(self, value: bytes) -> None:
        """Allow growth for the number of seconds in `value`.

        Ignore a value that is no such number.
        """
        try:
            seconds = float(value)
        except ValueError:
            return
        if 0 <= seconds < math.inf:
            self._let_go()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._hold, True)

    def _let_go(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._hold(False)
