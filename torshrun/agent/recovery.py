"""Follows where workers stand that go on without those that are lost, and tells them of rounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.contract import (
    AT_COMMIT,
    EXITED,
    FIXED,
    LEFT_EARLY,
    PARKED,
    RECOVERY,
    place_of,
)
from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Put, Store
from torshrun.agent import protocol
from torshrun.workers.group import WorkerGroup
from torshrun.workers.spec import Assignment
from torshrun.workers.worker import Worker

NOTICE = 10.0
"""Seconds within which workers hear that a round is over whose ranks lose one another."""
NOTICE_OF_NODES = 60.0
"""Seconds at least for the same in jobs of several nodes."""
NOTICE_TTLS = 4
"""Number of ttls after which the loss of a node is known for sure. If it leads, another node is
elected after its lease, and waits for two ttls until what the leader has granted has run out."""
PARK_BOUND = 300.0
"""Seconds in which the first survivor has to notice that the round is over."""
PARK_LEAST = 5.0
"""Seconds that the others then have, in addition to some steps."""
PARK_STEPS = 3
"""Number of steps that they have, each as long as the longest of those that have parked."""


@dataclass(eq=False)
class Recovery:
    """Belongs to the loop's thread. The oldest workers of a round say which store it has."""

    loop: asyncio.AbstractEventLoop
    group: WorkerGroup
    post: Callable[[protocol.Event], None]
    on_corrupted: Callable[[bytes], None]
    """Takes what a worker writes of a state that differs between ranks."""
    on_unprotected: Callable[[int, str], None]
    """Takes the local rank of a worker of which no copies are made, and why."""

    def __post_init__(self) -> None:
        self._store: Store | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending = -1
        """The number of the round whose workers are to park; -1 if there is none."""
        self._is_alone = self._is_hasty = True
        """Whether there is one node, and whether workers are to leave the round at once."""
        self._first_parked: dict[str, bytes] = {}
        """The seconds of the longest step that a worker of any node has told as the first that has
        left a round, by the round's number."""

    def start(self, store: Store, ttl: float | None) -> None:
        """Follow the workers that have this store, and what agents of other nodes tell there.

        `ttl` is that of the nodes; None if there is one node.
        """
        self._store, is_alone = store, ttl is None
        notice = NOTICE if ttl is None else max(NOTICE_OF_NODES, NOTICE_TTLS * ttl)
        self._spawn(_put_first(store, f"{RECOVERY}notice", str(notice).encode()))
        self._is_alone, self._first_parked = is_alone, {}
        self._ending, self._is_hasty = -1, True
        self._spawn(self._watch(store))
        if not is_alone:
            self.follow_others()

    def follow_others(self) -> None:
        """Follow what agents of other nodes tell in the store of the round that has begun."""
        if self._store is not None:
            self._spawn(self._watch_others(self._store, EXITED, self._take_exited))
            self._spawn(self._watch_others(self._store, PARKED, self._take_parked))

    def stop(self) -> None:
        """Follow no worker any more."""
        self._cancel_timer()
        for task in self._tasks:
            task.cancel()
        self._store = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():  # what goes wrong is an internal error, and not forgotten
            task.result()

    async def end_round(self, number: int, at_commit: bool) -> None:
        """Tell the survivors that the round is over, at their next commit or now. From now on they
        have a while to park."""
        assert self._store is not None
        was_to_commit = self._ending == number and not self._is_hasty
        self._ending, self._is_hasty = number, not at_commit
        if at_commit:
            await self._store.put(f"{RECOVERY}over/{number}", AT_COMMIT)
            return
        self._allow(PARK_BOUND)
        if str(number) in self._first_parked:
            self._allow_steps(self._first_parked[str(number)])
        await self._store.put(f"{RECOVERY}{'now' if was_to_commit else 'over'}/{number}", b"")

    async def tell_exited(self, number: int, rank: int, on_all_nodes: bool) -> None:
        """Tell workers that wait for this one that it has ended well, and no round follows."""
        assert self._store is not None
        await self._store.put(f"{RECOVERY}over/{number}", str(rank).encode())
        if on_all_nodes:  # in their store, which may take its time
            self._spawn(_put_first(self._store, f"{EXITED}{number}", str(rank).encode()))

    async def tell_adopted(self, pid: int, number: int) -> None:
        """Tell the copy of a lost worker that it is one itself from this round on."""
        assert self._store is not None
        await self._store.put(f"{RECOVERY}copy/{pid}", str(number).encode())

    async def begin_round(self, number: int, everyone: Sequence[Assignment]) -> None:
        """Tell the survivors to meet again in this round, in these places."""
        assert self._store is not None
        self._cancel_timer()
        if not self._is_hasty:  # nobody is to wait for it any more
            await self._store.put(f"{RECOVERY}now/{self._ending}", b"")
        self._ending, self._is_hasty = -1, True
        places = [place_of(each.environ) for each in everyone]
        await self._store.put(f"{RECOVERY}round/{number}", json.dumps(places).encode())

    async def _watch(self, store: Store) -> None:
        with contextlib.suppress(StoreError):  # it closes with the round
            listing = await store.list(RECOVERY)
            async with contextlib.aclosing(store.watch(RECOVERY, listing.revision)) as events:
                async for event in events:
                    key = event.key.removeprefix(RECOVERY)
                    self._take(key.split("/"), event.value or b"")

    async def _watch_others(
        self, store: Store, prefix: str, take: Callable[[str, bytes], Coroutine[Any, Any, None]]
    ) -> None:
        """Take what agents of any node tell of each round."""
        with contextlib.suppress(StoreError):
            listing = await store.list(prefix)
            for item in listing.items:
                await take(item.key.removeprefix(prefix), item.value)
            async with contextlib.aclosing(store.watch(prefix, listing.revision)) as events:
                async for event in events:
                    await take(event.key.removeprefix(prefix), event.value or b"")

    async def _take_exited(self, number: str, rank: bytes) -> None:
        """Tell the workers here of one of any node that has ended well before the last step."""
        assert self._store is not None
        await _put_first(self._store, f"{RECOVERY}over/{number}", rank)

    async def _take_parked(self, number: str, seconds: bytes) -> None:
        """Bound the time of the workers here by the steps of one of any node, as all take the same
        steps."""
        self._first_parked.setdefault(number, seconds)
        if number == str(self._ending) and self._is_hasty:
            self._allow_steps(seconds)

    def _take(self, key: Sequence[str], value: bytes) -> None:
        match key:
            case ["joined", start, rank] if self._is_present(start, rank):
                self.post(protocol.Joined(int(rank), value == FIXED))
            case ["left", start, rank] if self._is_present(start, rank):
                self.post(protocol.Left(int(rank), value == LEFT_EARLY))
            case ["refused", start, rank] if self._is_present(start, rank):
                self.post(protocol.Refused(int(rank)))
            case ["corrupted", start, rank] if self._is_present(start, rank):
                self.on_corrupted(value)
            case ["unprotected", start, rank] if self._is_present(start, rank):
                self.on_unprotected(int(rank), value.decode(errors="replace"))
            case ["parked", number, rank] if number == str(self._ending):
                self._first_parked.setdefault(number, value)
                if self._is_hasty:
                    self._allow_steps(value)
                if not self._is_alone and self._store is not None:
                    self._spawn(_put_first(self._store, f"{PARKED}{number}", value))
                self.post(protocol.Parked(self._ending, int(rank)))

    def _is_present(self, start: str, rank: str) -> bool:
        """Return whether the process of that local rank that began in round `start` runs."""
        return any(_is(worker, start, rank) for worker in self.group.workers)

    def _allow_steps(self, longest: bytes) -> None:
        self._allow(PARK_LEAST + PARK_STEPS * _seconds(longest))

    def _allow(self, seconds: float) -> None:
        """Give workers so many seconds from now on to park, or what they have if that is less."""
        until = self.loop.time() + seconds
        if self._timer is not None:
            until = min(until, self._timer.when())
        self._cancel_timer()
        over = protocol.ParkingOver(self._ending)
        self._timer = self.loop.call_at(until, self.post, over)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _put_first(store: Store, key: str, value: bytes) -> None:
    """Write a key unless it exists, and the store can be reached."""
    with contextlib.suppress(StoreError):
        await store.transact((Compare(key, 0),), (Put(key, value),))


def _is(worker: Worker, start: str, rank: str) -> bool:
    began = str(worker.assignment.worker.round)
    return worker.alive and (str(worker.local_rank), began) == (rank, start)


def _seconds(value: bytes) -> float:
    """Return the seconds that a worker has written; 0 for nonsense."""
    try:
        return min(max(float(value), 0.0), PARK_BOUND)
    except ValueError:
        return 0.0
