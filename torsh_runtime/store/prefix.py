"""Scopes: parts of a store whose keys begin with one prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Compare, Delete, Entry, Event, Listing, Put, Write


class Scope(NamedTuple):
    """Translates between the names of keys within a scope and in the store.

    With an empty prefix the scope is the whole store.
    """

    prefix: str = ""

    def within(self, prefix: str) -> Scope:
        """Return a scope inside this one."""
        return Scope(self.prefix + prefix)

    # ---- to the store

    def key(self, key: str) -> str:
        """Return the name of a key in the store. Raises StoreError when `key` is empty."""
        if not key:
            raise StoreError("a key must be a non-empty string")
        return self.prefix + key

    def compare(self, compare: Compare) -> Compare:
        return compare._replace(key=self.key(compare.key))

    def write(self, write: Write) -> Write:
        if isinstance(write, Put):
            return write._replace(key=self.key(write.key))
        return Delete(self.key(write.key))

    # ---- from the store

    def entry(self, entry: Entry) -> Entry:
        return entry._replace(key=entry.key[len(self.prefix) :]) if self.prefix else entry

    def optional(self, entry: Entry | None) -> Entry | None:
        return None if entry is None else self.entry(entry)

    def listing(self, listing: Listing) -> Listing:
        if not self.prefix:
            return listing
        return Listing(tuple(map(self.entry, listing.items)), listing.revision)

    def found(self, entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
        if not self.prefix:
            return entries
        return {entry.key: entry for entry in map(self.entry, entries.values())}

    def event(self, event: Event) -> Event:
        return event._replace(key=event.key[len(self.prefix) :]) if self.prefix else event
