"""Watches a run in its store, and writes requests to it."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from urllib.parse import unquote

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.base import Compare, Delete, Entry, Event, Put, Store, Write
from torsh_runtime.store.signed import SignedStore, verified
from torshrun.config.job import RendezvousConfig
from torshrun.ctl.picture import NotDone, Picture, read
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import BATCH, REQUEST_TIMEOUT
from torshrun.rendezvous.epoch import Epoch, read_epoch
from torshrun.rendezvous.rendezvous_store import RendezvousStore, join

ALL_RUNS = rows.base("").removesuffix("/")
"""The prefix of the keys of all runs."""
QUIET = 0.1
"""Seconds for which changes are gathered before they are read."""
_PAUSE = 0.2  # seconds between two attempts


class Progress(NamedTuple):
    done: bool
    text: str
    """The outcome so far, or what is still missing, in one line for people."""


@asynccontextmanager
async def reach(config: RendezvousConfig) -> AsyncGenerator[Store, None]:
    """Open the store where the nodes rendezvous. It is never served here.

    Raises StoreError if the store cannot be reached.
    """
    is_etcd = config.backend == "etcd"
    meeting = await (RendezvousStore.open(config, lambda _: None) if is_etcd else _visit(config))
    try:
        yield meeting.store
    finally:
        await meeting.close()


async def _visit(config: RendezvousConfig) -> RendezvousStore:
    """Connect to the store that an agent serves.

    Raises StoreError with the reason if it cannot be reached.
    """
    try:
        return await join(config, REQUEST_TIMEOUT)
    except StoreError as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise StoreError(
                f"no store is served at {config.endpoints[0]}: the job there has ended or was "
                "never started, or its nodes rendezvous elsewhere (--rdzv-endpoint)"
            ) from None
        is_refusal = error.__cause__ is None and not isinstance(error, StoreTimeout)
        hint = "; --secret-file or TORSH_SECRET must be that of its nodes" if is_refusal else ""
        raise StoreError(f"{str(error).rstrip('.')}{hint}") from None


async def run_ids(store: Store) -> list[str]:
    """Return the ids of the runs that have keys in the store."""
    keys = [item.key for item in (await store.list(ALL_RUNS)).items]
    pattern = re.compile(rf"{re.escape(ALL_RUNS)}(.+)/(?:ctl|nodes)/[^/]+", re.DOTALL)
    return sorted({unquote(found[1]) for key in keys if (found := pattern.fullmatch(key))})


@dataclass(eq=False)
class Run:
    """Watches a run, and sends it requests while it is `watched`."""

    store: Store
    run_id: str
    secret: bytes = field(repr=False)
    """The secret of the job. Empty if its nodes were given none."""
    patience: float
    """Seconds for which a store that fails is tried again."""
    timeout: float | None = None
    """Seconds to wait until a request is fulfilled. With None it is not waited for."""
    say: Callable[[str], None] = lambda _: None
    """Receives a line whenever what is still waited for changes."""

    def __post_init__(self) -> None:
        self._epoch: Epoch | None = None
        self._base = rows.base(self.run_id)
        self._items: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self._failure: StoreError | None = None
        self.picture = read(self.run_id, {})
        """The run as it was last looked at."""

    @asynccontextmanager
    async def watched(self, *, even_traces: bool = False) -> AsyncGenerator[Self, None]:
        """Read the run, and watch it from then on.

        Raises NotDone if there is no such run. With `even_traces` it is enough that a key of the
        run is left. Raises StoreError if the store cannot be reached.
        """
        self._items, revision = await self._list()
        self.picture = read(self.run_id, self._items)
        if self._items and not self._epoch and not even_traces:
            raise NotDone(
                f"run {self.run_id!r} has another secret: give that of its nodes by TORSH_SECRET "
                f"or --secret-file, or none if they have none"
            )
        if not (self.picture.is_there or (even_traces and self._items)):
            others = ", ".join(map(repr, await run_ids(self.store)))
            there = f"its runs are: {others}" if others else "it holds no run"
            raise NotDone(
                f"there is no run {self.run_id!r} in this store (--rdzv-id names it); {there}"
            )
        watching = asyncio.get_running_loop().create_task(self._follow(revision))
        try:
            yield self
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    # ---- its state

    async def change(self) -> Picture:
        """Wait for the next change of the run and return its new state.

        Raises StoreError once the store is gone and all earlier changes were returned.
        """
        await self._changed.wait()
        await asyncio.sleep(QUIET)
        self._changed.clear()
        before, self.picture = self.picture, read(self.run_id, self._items)
        if self._failure and self.picture == before:
            raise self._failure
        if self._failure:
            self._changed.set()
        return self.picture

    async def wait(self, check: Callable[[Picture], Progress]) -> str:
        """Wait until `check` finds the request done, and return what has happened.

        Raises NotDone after the timeout.
        """
        if self.timeout is None:
            return "asked for; not waiting for it (--no-wait)"
        progress = check(self.picture)
        try:
            async with asyncio.timeout(self.timeout):
                while not progress.done:
                    self.say(progress.text)
                    last = progress
                    while progress == last:
                        progress = check(await self.change())
        except StoreError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            text = f"not done after {self.timeout:g} s, but asked for: {progress.text}"
            raise NotDone(text) from None
        return progress.text

    async def now(self) -> Picture:
        """Return the run's current state in the store."""
        return read(self.run_id, (await self._list())[0])

    # ---- requests

    async def ask(self, wanted: dict[str, bytes], seconds: float | None = None) -> None:
        """Write these keys. They vanish after `seconds`, or never if that is None."""
        if not self._epoch:
            raise NotDone(f"run {self.run_id} has just ended")
        signed = SignedStore(self.store, self._epoch.records)
        lease = 0 if seconds is None else await signed.grant(seconds)
        puts = [Put(self._base + key, value, lease) for key, value in wanted.items()]
        await self._write(signed, puts)

    async def withdraw(self, keys: Sequence[str]) -> None:
        await self._write(self.store, [Delete(self._base + key) for key in keys])

    async def erase(self, check: Callable[[Picture], None]) -> bool:
        """Delete all of the run's keys unless `check` raises.

        Returns False, with some keys left, if the run has become active again.
        """
        items = (await self.store.list(self._base)).items
        if not self._epoch and any(self._name(item.key).startswith(rows.NODES) for item in items):
            raise NotDone(f"run {self.run_id} has nodes, and a different secret")
        check(read(self.run_id, {self._name(i.key): self._value(i) for i in items}))
        no_leader = Compare(self._base + rows.LEADER, 0)
        for start in range(0, len(items), BATCH):
            batch = items[start : start + BATCH]
            unchanged = (Compare(item.key, item.revision) for item in batch)
            deletes = [Delete(item.key) for item in batch]
            outcome = await self.store.transact((no_leader, *unchanged), deletes)
            if not outcome.succeeded:
                return False
        return True

    async def _write(self, store: Store, writes: Sequence[Write]) -> None:
        for start in range(0, len(writes), BATCH):
            await store.transact((), writes[start : start + BATCH])

    # ---- watching

    async def _list(self) -> tuple[dict[str, bytes], int]:
        """Return the values that the run's nodes have signed, and the revision."""
        items, revision = await self.store.list(self._base)
        epoch = next((item for item in items if self._name(item.key) == rows.EPOCH), None)
        self._epoch = epoch and read_epoch(self.run_id, self.secret, epoch)
        return {self._name(item.key): self._value(item) for item in items}, revision

    def _name(self, key: str) -> str:
        return key.removeprefix(self._base)

    def _value(self, seen: Entry | Event) -> bytes:
        if not self._epoch:
            return b""
        return verified(self._epoch.records, seen.key, seen.value, seen.lease)

    async def _follow(self, revision: int) -> None:
        """Watch the run. List it again after a break, until the store has failed for too long."""
        broken = math.inf
        while not self._failure:
            with suppress(StoreError):
                async with aclosing(self.store.watch(self._base, revision)) as events:
                    async for event in events:
                        self._take(event)
            try:
                self._items, revision = await self._list()
                broken = math.inf
            except StoreError as error:
                broken = min(broken, time.monotonic())
                over = time.monotonic() - broken >= self.patience
                self._failure = error if over else None
            self._changed.set()
            await asyncio.sleep(_PAUSE)

    def _take(self, event: Event) -> None:
        name = self._name(event.key)
        if name == rows.EPOCH:
            raise StoreError("the run has another epoch")  # and is listed anew
        if event.kind == "put":
            self._items[name] = self._value(event)
        else:
            self._items.pop(name, None)
        self._changed.set()
