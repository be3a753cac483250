"""Maintains this node's lease and its row in the store."""

from __future__ import annotations

import math
from collections.abc import Callable

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Put
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.member import Member
from torshrun.rendezvous.rows import NodeRow
from torshrun.rendezvous.settings import GRANT


class Registration:
    """Keeps what the store holds equal to what the member wants. The store may come and go."""

    def __init__(self, asking: Asking, member: Member, on_lost: Callable[[], None]) -> None:
        """Begin without a lease.

        `on_lost` is called when the lease, and all that was bound to it, has ended.
        """
        self._asking = asking
        self._member = member
        self._on_lost = on_lost
        self._key = asking.key(rows.NODES + member.row.node)
        self._revision = 0
        self._unsure = False  # whether a write may or may not have been made
        self.lease = 0
        self.written: NodeRow | None = None
        """The row as it stands in the store on this lease, as far as is known."""
        self.renewed = -math.inf
        """When the last successful renewal was sent."""

    @property
    def until(self) -> float:
        """Return until when the store lets this node run the workers of the round it is inside."""
        if not self.lease or self.written is None or self.written.state != "inside":
            return -math.inf
        return self.lease_until

    @property
    def lease_until(self) -> float:
        """Return until when the lease surely lives."""
        return self.renewed + GRANT * self._asking.settings.ttl if self.lease else -math.inf

    @property
    def is_due(self) -> bool:
        """Return whether something is to be written and may be."""
        return self._unsure or (self.written != self._member.row and self._may_write())

    def _may_write(self) -> bool:
        """Return whether the row may be written.

        A row "inside" is written anew only while its round is open and the grant lasts.
        """
        member, row = self._member, self._member.row
        if row.state != "inside" or self._stands_inside():
            return True
        header = member.header
        is_open = header is not None and header.phase == "open" and header.token == row.token
        return is_open and (member.is_entering or member.is_inside)

    def _stands_inside(self) -> bool:
        written, row = self.written, self._member.row
        return written is not None and written.state == "inside" and written.token == row.token

    def doubt(self) -> None:
        """Mark the row as unsure: the store may have lost what was written."""
        self._unsure = self._unsure or self.written is not None

    async def open_lease(self) -> None:
        sent = self._asking.clock()
        asking = self._asking
        self.lease = await asking.ask(asking.store.grant(asking.settings.ttl))
        self.renewed = sent

    async def write(self) -> bool:
        """Write the member's row, and return whether the store has it.

        Raise StoreError if that is not known.
        """
        if self._unsure:
            await self._read()
            if self.written == self._member.row or not self._may_write():
                return self.written == self._member.row
        asking, row, lease = self._asking, self._member.row, self.lease
        if not lease:  # it was lost while the row was read
            return False
        compares = [Compare(self._key, self._revision)]
        if row.state == "inside" and not self._stands_inside():
            compares.append(Compare(asking.key(rows.ROUND), self._member.header_revision))
        self._unsure = True
        put = Put(self._key, rows.encode(row), lease)
        outcome = await asking.ask(asking.store.transact(compares, (put,)))
        if not outcome.succeeded or self.lease != lease:
            await self._read()
            return self.written == row
        self._revision, self.written, self._unsure = outcome.revision, row, False
        return True

    async def _read(self) -> None:
        asking = self._asking
        entry = await asking.ask(asking.store.get(self._key))
        ours = entry is not None and entry.lease == self.lease
        self._revision = entry.revision if entry else 0
        self.written = rows.decode(NodeRow, entry.value) if entry and ours else None
        self._unsure = False

    async def renew(self) -> bool:
        """Renew the lease; whether it lives. StoreError: not known."""
        asking, lease, sent = self._asking, self.lease, self._asking.clock()
        try:
            await asking.ask(asking.store.keep_alive(lease), asking.settings.interval)
        except StoreError:
            return await self._look_for_row(lease)
        if self.lease == lease:
            self.renewed = max(self.renewed, sent)
        return True

    async def _look_for_row(self, lease: int) -> bool:
        """Return whether the lease still holds the row.

        If the store denies it, the lease has ended.
        """
        asking = self._asking
        entry = await asking.ask(asking.store.get(self._key), asking.settings.interval)
        if (entry is not None and entry.lease == lease) or self.lease != lease:
            return True
        self.lease, self.written = 0, None
        self._revision = entry.revision if entry else 0
        self._unsure = True
        self._on_lost()
        return False

    async def end(self, *, keep_row: bool) -> None:
        """Release the lease, and with it the row, unless that is to stay readable for a while."""
        if self.lease and not keep_row:
            await self._asking.ask(self._asking.store.revoke(self.lease), 2.0)
        self.lease = 0
