"""The Store port over etcd's HTTP gateway."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import (
    Compare,
    Delete,
    Entry,
    Event,
    Listing,
    Outcome,
    Put,
    Store,
    Write,
)
from torsh_runtime.store.etcd import messages
from torsh_runtime.store.etcd.config import EtcdConfig
from torsh_runtime.store.etcd.gateway import AnswerLost, Gateway, Refused
from torsh_runtime.store.etcd.messages import KeyRange, Message
from torsh_runtime.store.etcd.settlement import Settlement, send_transaction
from torsh_runtime.store.etcd.watching import watch
from torsh_runtime.store.memory import missed
from torsh_runtime.store.state import check_key, check_writes, counted

_LEASE_EXISTS = "etcdserver: lease already exists"
_READS_AT_ONCE = 100  # etcd takes 128 operations in a transaction


class StoreIdentity(NamedTuple):
    """Distinguishes an etcd from a different one that has replaced it."""

    cluster: int
    """Id of the cluster. A new cluster has a different one, unless it is configured equally."""
    revision: int
    """Revision of the store, which never decreases."""


class EtcdStore(Store):
    """Implements the Store port over an etcd cluster. Use it from one event loop only; close it.

        store = EtcdStore(EtcdConfig.parse("etcd0:2379,etcd1:2379"))
        await store.put("key", b"value")

    Every request ends within the configured request timeout, including fail-over between the
    members. It raises StoreTimeout when no member answered, or a majority of them is gone. A watch
    survives outages and continues at its revision; requests are what detects an outage.

    When the answer to a write is lost (its member died, or was cut off), the store finds out
    whether it was carried out, and never makes a conditional write twice. For that, values written
    under a condition must differ from those that other clients might write there: put a token in
    them. If it cannot be found out, StoreError says so. A write without a Compare on one of the
    keys that it puts may be repeated by etcd itself, late, if the member that received it was only
    paused.

    By default etcd refuses values of more than 1.5 MiB and transactions of more than 128
    operations.
    """

    def __init__(self, config: EtcdConfig) -> None:
        self._gateway = Gateway(config)

    def __str__(self) -> str:
        return str(self._gateway)

    async def identity(self, key: str = "torsh/") -> StoreIdentity:
        """Read `key`, which this user must be allowed to read, and return the store's identity."""
        keys = KeyRange(check_key(key), is_prefix=False).message() | {"count_only": True}
        answer = await self._read("identity", "kv/range", keys)
        return StoreIdentity(messages.cluster(answer), messages.revision(answer))

    async def get(self, key: str) -> Entry | None:
        keys = KeyRange(check_key(key), is_prefix=False)
        found = messages.entries(await self._read(f"get({key!r})", "kv/range", keys.message()))
        return found[0] if found else None

    async def list(self, prefix: str) -> Listing:
        keys = KeyRange(prefix, is_prefix=True)
        answer = await self._read(f"list({prefix!r})", "kv/range", keys.message())
        return Listing(messages.entries(answer), messages.revision(answer))

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        return (await self.transact((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        deadline = self._gateway.deadline()
        while (entry := await self.get(key)) is not None:
            condition = Compare(key, entry.revision)
            if (await self._commit((condition,), (Delete(key),), deadline)).succeeded:
                return True
        return False

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        check_writes(writes)
        for compare in compares:
            check_key(compare.key)
        return await self._commit(compares, writes, self._gateway.deadline())

    async def add(self, key: str, amount: int) -> int:
        deadline = self._gateway.deadline()
        while True:
            entry = await self.get(key)
            total = counted(key, entry, amount)
            revision, lease = (entry.revision, entry.lease) if entry else (0, 0)
            write = Put(key, str(total).encode(), lease)
            made = await self._commit(
                (Compare(key, revision),), (write,), deadline, recognizable=False
            )
            if made.succeeded:
                return total

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        if not 0 <= timeout < math.inf:
            raise StoreError(f"a timeout must be a finite number of seconds >= 0, got {timeout}")
        wanted = tuple(dict.fromkeys(map(check_key, keys)))
        if not wanted:
            return {}
        found, revision = await self._read_all(wanted)
        try:
            async with asyncio.timeout(timeout):
                while missing := [key for key in wanted if key not in found]:
                    await self._arrival(missing[0], revision)
                    found, revision = await self._read_all(wanted)
        except TimeoutError as error:
            if isinstance(error, StoreError):
                raise
            raise missed([key for key in wanted if key not in found], timeout) from None
        return found

    def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        return watch(self._gateway, KeyRange(prefix, is_prefix=True), after)

    async def grant(self, ttl: float) -> int:
        """Create a lease that ends `ttl` seconds after it was last kept alive; return its id, > 0.

        etcd counts whole seconds, so the ttl is rounded up, and it has a minimum (2 s by default):
        a lease may end later than requested, never earlier. After a restart or a change of leader
        etcd begins to count anew. Raises StoreError unless `ttl` is a finite number > 0.
        """
        if not (ttl > 0 and math.isfinite(ttl)):
            raise StoreError(f"a lease's ttl must be a finite number of seconds > 0, got {ttl}")
        lease = secrets.randbelow(2**62) + 1
        wanted = {"TTL": str(math.ceil(ttl)), "ID": str(lease)}
        try:
            await self._read(f"grant({ttl:g})", "lease/grant", wanted)
        except Refused as refusal:
            if refusal.message != _LEASE_EXISTS:  # by an earlier try, whose answer was lost
                raise
        return lease

    async def keep_alive(self, lease: int) -> None:
        answer = await self._read(f"keep_alive({lease})", "lease/keepalive", {"ID": str(lease)})
        if int(answer.get("TTL", 0)) <= 0:
            raise StoreError(
                f"lease {lease} is unknown or has ended, and its keys are gone with it. "
                f"Grant a new lease and write them again."
            )

    async def revoke(self, lease: int) -> None:
        try:
            await self._read(f"revoke({lease})", "lease/revoke", {"ID": str(lease)})
        except Refused as refusal:
            if not refusal.not_found:
                raise

    async def close(self) -> None:
        await self._gateway.close()

    async def _read(self, what: str, path: str, message: Message) -> Message:
        """Send a request that may be carried out twice without harm, and return the answer."""
        return await self._gateway.call(what, path, message, self._gateway.deadline())

    async def _commit(
        self,
        compares: Sequence[Compare],
        writes: Sequence[Write],
        deadline: float,
        *,
        recognizable: bool = True,
    ) -> Outcome:
        before = self._gateway.revision
        try:
            answer = await send_transaction(self._gateway, compares, writes, deadline)
        except AnswerLost as lost:
            settlement = Settlement(
                self._gateway, compares, writes, before, deadline, lost, recognizable
            )
            return await settlement.settle()
        return Outcome(answer.get("succeeded", False), messages.revision(answer))

    async def _read_all(self, keys: Sequence[str]) -> tuple[dict[str, Entry], int]:
        """Return those of the keys that exist, and the revision after which to watch for others."""
        found: dict[str, Entry] = {}
        revisions: list[int] = []
        for start in range(0, len(keys), _READS_AT_ONCE):
            some = [KeyRange(key, is_prefix=False) for key in keys[start : start + _READS_AT_ONCE]]
            answer = await self._read(f"wait for {keys[0]!r}", "kv/txn", messages.reads(some))
            found |= {entry.key: entry for entry in messages.entries_read(answer)}
            revisions.append(messages.revision(answer))
        return found, min(revisions)

    async def _arrival(self, key: str, after: int) -> None:
        keys = KeyRange(key, is_prefix=False)
        async with aclosing(watch(self._gateway, keys, after)) as events:
            async for event in events:
                if event.kind == "put":
                    return
