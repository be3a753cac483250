"""A store whose clients sign the values that they write, and detect forged or older ones."""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import (
    Compare,
    Entry,
    Event,
    Listing,
    Outcome,
    Put,
    Store,
    StoreView,
    Write,
)

_TAG = 33
"""Bytes that a signature adds after a value: a newline, and 128 bits in hexadecimal."""


def sign(secret: bytes, key: str, value: bytes, lease: int) -> bytes:
    """Return the value with a signature that is valid only under this key and on this lease."""
    return value + b"\n" + _signature(secret, key, value, lease)


def verified(secret: bytes, key: str, signed: bytes, lease: int) -> bytes:
    """Return the value without its signature, or b"" if the signature is invalid."""
    value, signature = signed[:-_TAG], signed[-_TAG:]
    holds = hmac.compare_digest(signature, b"\n" + _signature(secret, key, value, lease))
    return value if holds else b""


def _signature(secret: bytes, key: str, value: bytes, lease: int) -> bytes:
    name = key.encode(errors="surrogateescape")
    text = f"{len(name)}:{lease}:".encode() + name + value
    return hmac.digest(secret, text, "sha256")[: (_TAG - 1) // 2].hex().encode()


class SignedStore(StoreView):
    """Presents a store in which all clients that know the secret sign the values that they write.

    A value with an invalid signature (HMAC-SHA256 over key, lease and value, truncated to 128
    bits) is read as b"", under its own revision, and `on_forged` is called with its key. Therefore
    no value that is written here may be empty. Any client that may write to the store can put back
    a value that was once signed, under the same key and on a lease of the same id; so values must
    state what they refer to.

    Nothing is written unless all `guards` hold, in addition to a transaction's own conditions.

    `on_older` is called when an answer has an earlier revision than was known before the request:
    the store has lost changes, or was restored to an earlier state.
    """

    def __init__(
        self,
        store: Store,
        secret: bytes,
        *guards: Compare,
        on_forged: Callable[[str], None] = lambda key: None,
        on_older: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(store)
        self._secret = secret
        self._guards = guards
        self._on_forged = on_forged
        self._on_older = on_older
        self._newest = 0
        """Highest revision that the store is known to have had."""

    async def get(self, key: str) -> Entry | None:
        entry = await self._store.get(key)
        return self._entry(entry) if entry else None

    async def list(self, prefix: str) -> Listing:
        known = self._newest
        listing = await self._store.list(prefix)
        self._note(listing.revision, known)
        return self.read(listing)

    def read(self, listing: Listing) -> Listing:
        """Return a listing of the wrapped store as this store presents it."""
        self._note(listing.revision, 0)
        return Listing(tuple(map(self._entry, listing.items)), listing.revision)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        outcome = await self.transact((), (Put(key, value, lease),))
        if not outcome.succeeded:
            raise StoreError(f"put({key!r}): what this store is to hold first does not stand there")
        return outcome.revision

    async def delete(self, key: str) -> bool:
        return await self._store.delete(key)

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Outcome:
        signed = [
            write._replace(value=self._sign(write)) if isinstance(write, Put) else write
            for write in writes
        ]
        known = self._newest
        outcome = await self._store.transact((*self._guards, *compares), signed)
        self._note(outcome.revision, known)
        return outcome

    async def add(self, key: str, amount: int) -> int:
        raise StoreError(f"add to {key!r}: signed values cannot be counted up")

    async def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        found = await self._store.wait(keys, timeout)
        return {key: self._entry(entry) for key, entry in found.items()}

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        async with aclosing(self._store.watch(prefix, after)) as events:
            async for event in events:
                self._note(event.revision, 0)
                is_put = event.kind == "put"
                yield event._replace(value=self._read(event)) if is_put else event

    def _note(self, revision: int, known: int) -> None:
        self._newest = max(self._newest, revision)
        if revision < known:
            self._on_older()

    def _sign(self, put: Put) -> bytes:
        if not put.value:
            raise StoreError(f"the value of {put.key!r} is empty: such a one cannot be signed")
        return sign(self._secret, *put)

    def _entry(self, entry: Entry) -> Entry:
        return entry._replace(value=self._read(entry))

    def _read(self, seen: Entry | Event) -> bytes:
        value = verified(self._secret, seen.key, seen.value, seen.lease)
        if not value:
            self._on_forged(seen.key)
        return value
