"""Settles transactions whose answer was lost, so that each is carried out once.

A transaction with a condition on a key that it puts can be sent again without harm: whichever copy
is carried out first makes the condition false for the others. One without such a condition gets
one, on the current state of the key. When the condition fails, the history of that key since then
shows whether our own write changed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.base import Compare, Entry, Event, Outcome, Put, Write
from torsh_runtime.store.etcd import messages
from torsh_runtime.store.etcd.gateway import AnswerLost, Gateway, Refused
from torsh_runtime.store.etcd.messages import KeyRange, Message
from torsh_runtime.store.etcd.watching import watch

_PAUSE = 0.02


async def send_transaction(
    gateway: Gateway,
    compares: Sequence[Compare],
    writes: Sequence[Write],
    deadline: float,
    otherwise: Sequence[KeyRange] = (),
) -> Message:
    """Send a transaction once and return the answer.

    If a condition does not hold, the answer has the ranges `otherwise`. Raises AnswerLost when it
    may have been carried out, StoreTimeout when no member has answered at the deadline,
    StoreError when it is refused.
    """
    key = writes[0].key if writes else compares[0].key if compares else ""
    what = f"transact({key!r}{', …' if len(writes) > 1 else ''})"
    try:
        if len(writes) == 1 and isinstance(writes[0], Put) and not compares:  # costs etcd less
            put = messages.put(writes[0])
            answer = await gateway.call(what, "kv/put", put, deadline, resend=False)
            return {**answer, "succeeded": True}
        message = messages.transaction(compares, writes, otherwise)
        return await gateway.call(what, "kv/txn", message, deadline, resend=not writes)
    except Refused as refusal:
        leases = {write.lease for write in writes if isinstance(write, Put) and write.lease}
        if not (refusal.not_found and leases):
            raise
        named = ", ".join(map(str, sorted(leases)))
        raise StoreError(
            f"{what}: lease {named} is unknown or has ended, and its keys are gone with it. "
            f"Grant a new lease and write them again."
        ) from None


class Settlement:
    """Settles a transaction. `before` is a revision from before it was first sent.

    Unless its values are `recognizable` as its own, an equal change by a different client cannot be
    distinguished from it.
    """

    def __init__(
        self,
        gateway: Gateway,
        compares: Sequence[Compare],
        writes: Sequence[Write],
        before: int,
        deadline: float,
        lost: AnswerLost,
        recognizable: bool,
    ) -> None:
        self._gateway = gateway
        self._compares = tuple(compares)
        self._writes = writes
        self._before = before
        self._deadline = deadline
        self._lost = lost
        self._recognizable = recognizable
        candidates = [w for w in writes if isinstance(w, Put)] or writes
        compared = {compare.key for compare in compares}
        guard = next((write for write in candidates if write.key in compared), None)
        self._guarded = guard is not None
        self._marker = guard or candidates[0]
        self._keys = KeyRange(self._marker.key, is_prefix=False)

    async def settle(self) -> Outcome:
        """Find out the outcome and return it; send the transaction again if need be.

        Raises StoreError if the outcome stays unknown.
        """
        try:
            while asyncio.get_running_loop().time() < self._deadline:
                if (outcome := await self._try()) is not None:
                    return outcome
                await self._gateway.pause(_PAUSE)
        except StoreTimeout as error:
            raise self._unknown(str(error)) from None
        raise self._unknown("etcd did not answer when it was asked")

    async def _try(self) -> Outcome | None:
        if self._guarded:
            return await self._send_again()
        entry = await self._current()
        if entry and entry.revision > self._before:
            revision = await self._own_change(0, entry)
            if revision:
                return Outcome(True, revision)
        return await self._send_again(Compare(self._marker.key, entry.revision if entry else 0))

    async def _send_again(self, *extra: Compare) -> Outcome | None:
        """Send it again and return the outcome.

        Returns None when the answer was lost again, or the extra condition failed.
        """
        compares = self._compares + extra
        try:
            answer = await send_transaction(
                self._gateway, compares, self._writes, self._deadline, (self._keys,)
            )
        except AnswerLost:
            return None
        if answer.get("succeeded", False):
            return Outcome(True, messages.revision(answer))
        found = messages.entries_read(answer)
        condition = next(c for c in compares if c.key == self._marker.key)
        revision = await self._own_change(condition.revision, found[0] if found else None)
        if revision:
            return Outcome(True, revision)
        if extra and condition.revision != (found[0].revision if found else 0):
            return None
        return Outcome(False, messages.revision(answer))

    async def _own_change(self, condition: int, entry: Entry | None) -> int:
        """Return the revision at which our write changed the key from its required state, or 0.

        If the key had to exist, only the next change of it can be ours; if it had to be absent, any
        change up to now can be. Raises StoreError when the history does not show it.
        """
        now = entry.revision if entry else 0
        since = condition or self._before
        if now == condition or 0 < now <= since:
            return 0
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._search(since, 0 if condition else now)
        except TimeoutError:
            raise self._unknown("the history of its key did not come in time") from None
        except StoreError as error:
            raise self._unknown(str(error)) from None

    async def _search(self, after: int, until: int) -> int:
        """Return the revision of our change, or 0 if none is found.

        Looks at the changes after the revision `after` up to `until`, but at least at the next one.
        """
        async with aclosing(watch(self._gateway, self._keys, after)) as events:
            async for event in events:
                if self._is_own(event):
                    if not self._recognizable:
                        raise self._unknown("somebody may have written the same value")
                    return event.revision
                if event.revision >= until:
                    return 0
        return 0

    def _is_own(self, event: Event) -> bool:
        if isinstance(self._marker, Put):
            return event.kind == "put" and event.value == self._marker.value
        return event.kind == "delete"

    async def _current(self) -> Entry | None:
        answer = await self._gateway.call(
            f"get({self._marker.key!r})", "kv/range", self._keys.message(), self._deadline
        )
        found = messages.entries(answer)
        return found[0] if found else None

    def _unknown(self, why: str) -> StoreError:
        return StoreError(
            f"{self._lost}, and whether it was carried out cannot be found out: {why}. Read the "
            f"keys before you decide anything by them."
        )
