"""A range of keys, listed and then watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Event, Listing
from torshrun.rendezvous.asking import Asking

Items = Sequence[tuple[str, bytes, int]]
"""Names without the prefix, values, and the revisions that they were written at."""


@dataclass(eq=False)
class WatchCache:
    """Keeps up with the keys under a prefix.

    Listings and changes are passed on in a sound order.
    """

    asking: Asking
    prefix: str
    on_change: Callable[[str, bytes | None, int], None]
    """Gets the value None for a key that is gone."""
    on_listing: Callable[[Items], None] | None = None
    """Takes each listing as a whole; if None, `on_change` gets each key that is listed or gone."""

    def __post_init__(self) -> None:
        self._prefix = self.asking.key(self.prefix)
        self._tell_all = self.on_listing or self._tell_each
        self._names: set[str] = set()  # what was listed last, or has been put since
        self.listed = -1
        """The revision of the latest listing."""
        self.is_loaded = asyncio.Event()
        self._meanwhile: dict[object, list[Event]] = {}
        """For each listing under way, what was heard since it was asked for."""

    async def follow(self, first: Listing | None = None) -> None:
        """List, then watch; again after each break, for ever. `first` is a listing at hand."""
        if first:
            self._load(first, [])
        while True:
            try:
                after = first.revision if first else await self.refresh()
                first = None
                await self.asking.watch(self._prefix, after, self._take)
            except StoreError:
                await self.asking.pause()

    async def refresh(self) -> int:
        """List once more, and so hear of everything up to now. The listing's revision."""
        this, heard = object(), list[Event]()
        self._meanwhile[this] = heard
        try:
            listing = await self.asking.ask(self.asking.store.list(self._prefix))
        finally:
            del self._meanwhile[this]
        if listing.revision >= self.listed:
            self._load(listing, heard)
        return listing.revision

    def _load(self, listing: Listing, heard: list[Event]) -> None:
        self.listed, size = listing.revision, len(self._prefix)
        self._tell_all([(item.key[size:], item.value, item.revision) for item in listing.items])
        for event in heard:  # the listing may be older than they are
            self._tell(event)
        self.is_loaded.set()

    def _tell_each(self, items: Items) -> None:
        names = {name for name, _, _ in items}
        for name in sorted(self._names - names):
            self.on_change(name, None, self.listed)
        self._names = names
        for item in items:
            self.on_change(*item)

    def _take(self, event: Event) -> None:
        for heard in self._meanwhile.values():
            heard.append(event)
        self._tell(event)

    def _tell(self, event: Event) -> None:
        if event.revision > self.listed:
            name, value = event.key.removeprefix(self._prefix), None
            if event.kind == "put":
                value = event.value
                self._names.add(name)
            self.on_change(name, value, event.revision)
