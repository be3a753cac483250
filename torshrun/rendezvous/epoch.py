"""Epochs: the lives of a run id in a store, and how a node finds the present one.

Every record of a run is signed with a key that is derived from the job's secret, the run id and
the epoch's name, so none of an earlier job, or of an older state of the store, counts. An epoch
ends with its job, or when the store has lost what it held or comes back older; then the nodes meet
anew, in another epoch that takes the place of the old one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from torsh_runtime.errors import RendezvousTimeout, StoreError
from torsh_runtime.store.base import Compare, Delete, Entry, Listing, Put, Write
from torsh_runtime.store.keys import derive
from torsh_runtime.store.signed import sign, verified
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.rows import EpochRow, VerdictRow

_UNKNOWN = (
    "this node lost touch with the others, and the round it was in is over: how the job ended is "
    "not known here. Look at the other nodes' output."
)
_REMEMBERED = 64
"""Number of replaced epochs that an epoch names, and whose marks it removes."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Represents one life of a run id."""

    run_id: str
    name: str
    after: str
    """Name of the epoch that this one continues; "" if it is a job's first."""
    secret: bytes
    """The job's."""
    past: tuple[str, ...] = ()
    """Names of the epochs that it replaces, the newest first.

    These are the epoch that it continues, the one that the store had, and those that these
    replaced.
    """
    revision: int = 0
    """At which it was written to the store."""
    is_proven: bool = False
    """True if it is surely the present one: begun by this node, or next after one that was.

    Signed records may be those of an earlier job, put back; then nobody lives who can answer for
    them.
    """

    @property
    def guards(self) -> tuple[Compare, ...]:
        """Return conditions that hold as long as the epoch is the present one.

        A store that was wiped counts its revisions anew, so that another epoch may have the same
        revision; it cannot have the same mark.
        """
        names = rows.EPOCH, _mark(self.name)
        return tuple(Compare(rows.base(self.run_id) + name, self.revision) for name in names)

    def key(self, service: str, *context: str) -> bytes:
        """Return the key of a service of this job; `context` says which one."""
        return derive(self.secret, service, self.run_id, self.name, *context)

    @property
    def records(self) -> bytes:
        """Return the key with which the run's records are signed."""
        return self.key("records")


def _mark(name: str) -> str:
    """Return the key in the store that exists together with the epoch of this name, and no
    other.
    """
    return f"{rows.EPOCH}/{name}"


def read_epoch(run_id: str, own: bytes, entry: Entry) -> Epoch | None:
    """Return the epoch in the store; None if it is not a valid one, or another secret's.

    `own` is the secret that this process brings, b"" if none.
    """
    row = rows.decode(EpochRow, entry.value.rpartition(b"\n")[0])
    if row is None or bool(row.secret) == bool(own):
        return None
    try:
        secret = own or bytes.fromhex(row.secret)
    except ValueError:
        return None
    epoch = Epoch(run_id, row.name, row.after, secret, row.past, entry.revision)
    is_sound = secret and verified(epoch.records, entry.key, entry.value, entry.lease)
    return epoch if is_sound else None


class EpochJoin:
    """The way into the present epoch, for one agent's life."""

    def __init__(self, asking: Asking, own: bytes, say: Callable[[str], None]) -> None:
        """Prepare to join. `own` is the node's secret; `say` is called with what it waits for."""
        self._asking = asking
        self._run_id = asking.settings.run_id
        self._own = own
        self._say = say
        self._told = ""
        self._entered = 0.0
        self._may_begin = True
        self._begun = ""  # the name of the last epoch that this node set out to begin
        self._abandoned: set[str] = set()

    def abandon(self, epoch: Epoch) -> None:
        """Mark an epoch that nobody answers for: another is to be begun in its place."""
        self._abandoned.add(epoch.name)

    async def enter(self, last: Epoch | None, *, may_begin: bool = True) -> tuple[Epoch, Listing]:
        """Return the present epoch, with the listing of what all nodes watch.

        If there is none it is begun here, or, without `may_begin`, soon by another node; else
        JobUnknown is raised. `last` is the epoch that the store has lost. Raise RendezvousTimeout
        after the join timeout, and StoreError if there is no place in the job.
        """
        asking = self._asking
        began = self._entered = asking.clock()
        self._may_begin = may_begin
        if last is None:  # of many that come at once the first begins, and the others find it
            await asyncio.sleep(asking.chance.uniform(0, asking.settings.rush))
        while True:
            try:
                found, why = await self._look(last)
                if found:
                    return found
            except StoreError as error:
                if isinstance(error, _Refusal):
                    raise
                why = str(error)
            if not may_begin and asking.clock() - began > 2 * asking.settings.ttl:
                raise JobUnknown(_UNKNOWN)
            if asking.clock() - began > asking.settings.join_timeout:
                raise RendezvousTimeout(f"waited {asking.settings.join_timeout:g} s: {why}")
            if why:
                self._tell(why)
                await asking.pause()

    def _tell(self, why: str) -> None:
        if why != self._told:
            self._told = why
            self._say(why)

    async def _look(self, last: Epoch | None) -> tuple[tuple[Epoch, Listing] | None, str]:
        """Return the epoch, or why it must still be waited for; if neither, look again."""
        asking = self._asking
        listing = await asking.ask(asking.store.list(asking.key(rows.CONTROL)))
        found = {asking.name(item.key): item for item in listing.items}
        entry = found.get(rows.EPOCH)
        epoch = read_epoch(self._run_id, self._own, entry) if entry else None
        why = ""
        if entry and not epoch and not last:
            why = await self._wait_for_strangers(found)
        elif epoch and self._may_be_next(epoch, last):
            ended = self._verdict(epoch, found.get(rows.VERDICT))
            if not ended or (last and last.name == epoch.after):
                is_next = last is not None and last.name in epoch.past
                is_proven = is_next or epoch.name == self._begun
                return (replace(epoch, is_proven=is_proven), listing), ""
            why = self._wait_for_end(ended)
        if not self._may_begin:
            why = why or "this node lost touch with the others: waiting for another to begin anew"
        if not why:
            await self._begin(found, epoch, last)
        return None, why

    def _wait_for_end(self, ended: VerdictRow) -> str:
        """Return the reason to wait because of a verdict; it vanishes when its lease ends."""
        settings = self._asking.settings
        if self._asking.clock() > self._entered + settings.verdict_ttl + settings.ttl:
            return ""
        return (
            f"the last job of this run id has ended ({ended.outcome}); the run id will soon be "
            f"free again"
        )

    async def _wait_for_strangers(self, found: dict[str, Entry]) -> str:
        """Return the reason to wait because of a job that has another secret."""
        await self._refuse_if_alive(found)
        settings = self._asking.settings
        if self._asking.clock() > self._entered + settings.outage_timeout + settings.ttl:
            return ""
        return (
            "nodes of an earlier job of this run id, which had another secret, may still run "
            f"workers: waiting {settings.outage_timeout:g} s and a ttl at most (torshctl forget "
            "ends that)"
        )

    def _may_be_next(self, epoch: Epoch, last: Epoch | None) -> bool:
        """Return whether the epoch may follow `last`, for a node that was in that one.

        Such a node takes only an epoch that names `last` as its past: others may have been put
        back.
        """
        is_later = last is None or last.name in epoch.past
        return epoch.name not in self._abandoned and (is_later or not self._may_begin)

    def _verdict(self, epoch: Epoch, entry: Entry | None) -> VerdictRow | None:
        value = verified(epoch.records, *entry[:2], entry.lease) if entry else b""
        return rows.decode(VerdictRow, value)

    async def _refuse_if_alive(self, found: dict[str, Entry]) -> None:
        """Raise an error if the job lives: a node that lacks its secret must not end it."""
        asking = self._asking
        nodes = await asking.ask(asking.store.list(asking.key(rows.NODES)))
        alive = [found.get(rows.LEADER), *nodes.items]
        if any(entry and entry.lease for entry in alive):
            mine = "differs from that of the job" if self._own else "is missing: the job has one"
            raise _Refusal(
                f"this node's secret {mine}: TORSH_SECRET / --secret-file must be the same "
                f"everywhere, or on no node at all"
            )

    async def _begin(
        self, found: dict[str, Entry], stands: Epoch | None, last: Epoch | None
    ) -> None:
        """Write a new epoch in place of what was found, unless another node is faster."""
        asking, entry = self._asking, found.get(rows.EPOCH)
        secret = self._own or (last.secret if last else secrets.token_bytes(32))
        made_up = "" if self._own else secret.hex()
        name = secrets.token_hex(16)
        after = last.name if last else ""
        earlier = [epoch for epoch in (last, stands) if epoch]
        names = [epoch.name for epoch in earlier]
        names += chain.from_iterable(zip_longest(*(epoch.past for epoch in earlier)))
        past = tuple(dict.fromkeys(filter(None, names)))[:_REMEMBERED]
        epoch = Epoch(self._run_id, name, after, secret, past)
        row = rows.encode(EpochRow(name=name, after=after, past=past, secret=made_up))
        self._begun, key, mark = name, asking.key(rows.EPOCH), asking.key(_mark(name))
        compare = Compare(key, entry.revision if entry else 0)
        writes: list[Write] = [Put(key, sign(epoch.records, key, row, 0))]
        writes.append(Put(mark, sign(epoch.records, mark, rows.SET, 0)))
        marks = [other for other in found if other.startswith(_mark(""))]
        writes += [Delete(asking.key(other)) for other in marks[:_REMEMBERED]]
        await asking.ask(asking.store.transact((compare,), writes))


class _Refusal(StoreError):
    """Trying again does not help."""


class JobUnknown(StoreError):
    """Reports that nobody is left who knows how the job ended."""
