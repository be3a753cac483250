"""How a node asks the store: each request with a deadline, attempts with pauses between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TypeVar

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.base import Event, Store
from torshrun.rendezvous import rows
from torshrun.rendezvous.settings import Settings

T = TypeVar("T")

REQUEST_TIMEOUT = 5.0
"""Seconds for one request to the store."""
RELIST = 60.0
"""Seconds after which what is watched is listed anew, in case a watch has silently died."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts; doubled from the first to the longest."""


class Trouble:
    """What the store last failed with, whichever of the node's tasks had asked."""

    def __init__(self) -> None:
        self.last = ""


class Asking:
    """A store, the run's keys in it, and the patience of one of the node's tasks."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float],
        chance: random.Random,
        trouble: Trouble | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.chance = chance
        self.trouble = trouble or Trouble()
        self._base = rows.base(settings.run_id)
        self._pause = FIRST_PAUSE

    def another(self) -> Asking:
        """The same for another task."""
        return Asking(self.store, self.settings, self.clock, self.chance, self.trouble)

    def key(self, name: str) -> str:
        return self._base + name

    def name(self, key: str) -> str:
        return key.removeprefix(self._base)

    async def ask(self, request: Awaitable[T], timeout: float = REQUEST_TIMEOUT) -> T:
        """The answer. StoreError if there is none in time."""
        try:
            answer = await self._in_time(request, timeout)
        except StoreError as error:
            self.trouble.last = str(error)
            raise
        self._pause = FIRST_PAUSE
        return answer

    async def _in_time(self, request: Awaitable[T], timeout: float) -> T:
        try:
            async with asyncio.timeout(timeout):
                return await request
        except TimeoutError as error:
            if isinstance(error, StoreTimeout):
                raise
            raise StoreTimeout(f"the store did not answer within {timeout:g} s") from None

    async def watch(self, prefix: str, after: int, take: Callable[[Event], None]) -> None:
        """Take the changes under a prefix, for RELIST seconds. StoreError if the watch breaks."""
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(RELIST * self.chance.uniform(0.5, 1)),
                aclosing(self.store.watch(prefix, after)) as events,
            ):
                async for event in events:
                    take(event)

    async def pause(self) -> None:
        """Wait after a failed attempt, longer after each in a row."""
        await asyncio.sleep(self._pause * self.chance.uniform(0.5, 1))
        self._pause = min(self._pause * 2, LONGEST_PAUSE, self.settings.interval)
