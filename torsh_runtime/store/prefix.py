"""A scope: the part of a store whose keys begin with one prefix."""

from __future__ import annotations

from typing import NamedTuple

from torsh_runtime.store.base import Compare, Delete, Entry, Event, Put, Write


class Scope(NamedTuple):
    """Translates between the names within a scope and the store's own."""

    prefix: str = ""

    def within(self, prefix: str) -> Scope:
        """A scope inside this one."""
        return Scope(self.prefix + prefix)

    def compare(self, compare: Compare) -> Compare:
        return compare._replace(key=self.prefix + compare.key)

    def write(self, write: Write) -> Write:
        if isinstance(write, Put):
            return write._replace(key=self.prefix + write.key)
        return Delete(self.prefix + write.key)

    def entry(self, entry: Entry) -> Entry:
        return entry._replace(key=entry.key[len(self.prefix) :])

    def event(self, event: Event) -> Event:
        return event._replace(key=event.key[len(self.prefix) :])
