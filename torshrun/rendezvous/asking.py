"""Sends a node's requests to the store, with deadlines, and pauses between attempts."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TypeVar

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.base import Event, Store
from torshrun.rendezvous import rows
from torshrun.rendezvous.settings import Settings

T = TypeVar("T")

REQUEST_TIMEOUT = 5.0
"""Seconds for one request to the store."""
BATCH = 100
"""Writes or conditions in one transaction; etcd takes 128 unless told otherwise."""
RELIST = 60.0
"""Seconds after which what is watched is listed anew, in case a watch has silently died."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts, at least and at most."""


@dataclass(eq=False)
class Asking:
    """A store, the run's keys in it, and the patience of all of the node's tasks."""

    store: Store
    settings: Settings
    clock: Callable[[], float]
    chance: random.Random
    trouble: str = ""
    """Text of the store's last failure; "" if it never failed."""
    _fails_since: float = math.inf

    def __post_init__(self) -> None:
        self._base = rows.base(self.settings.run_id)

    def key(self, name: str) -> str:
        return self._base + name

    def name(self, key: str) -> str:
        return key.removeprefix(self._base)

    async def ask(self, request: Awaitable[T], timeout: float = REQUEST_TIMEOUT) -> T:
        """Return the answer. Raise StoreError if there is none within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                answer = await request
        except (StoreError, TimeoutError) as error:
            late = StoreTimeout(f"the store did not answer within {timeout:g} s")
            failure = error if isinstance(error, StoreError) else late
            self.trouble = str(failure)
            self._fails_since = min(self._fails_since, self.clock())
            raise failure from error.__cause__
        self._fails_since = math.inf
        return answer

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
        """Wait after a failed attempt, about as long as no attempt has succeeded."""
        pause = max(self.clock() - self._fails_since, FIRST_PAUSE)
        pause = min(pause, LONGEST_PAUSE, self.settings.interval)
        await asyncio.sleep(pause * self.chance.uniform(0.5, 1))
