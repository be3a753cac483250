"""How what stands in the store is read from outside: the one place that knows its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torsh_runtime.store.base import Entry, Event, Put, Write
from torsh_runtime.store.signed import sign, verified
from torshrun.rendezvous import rows
from torshrun.rendezvous.epoch import Epoch, read_epoch
from torshrun.rendezvous.rows import Header, NodeRow

T = TypeVar("T")
SECRET = b"that of the virtual job"


class Codec:
    """Keys and rows of one run."""

    def __init__(self, run_id: str) -> None:
        self.base = rows.base(run_id)
        self.epoch: Epoch | None = None
        """The one that stands."""
        self._run_id = run_id
        self._read: dict[tuple[type[Any], bytes], Any] = {}

    def turn(self, entry: Entry | None) -> bool:
        """This stands in the epoch's place now; whether it is another one."""
        before = self.epoch
        self.epoch = read_epoch(self._run_id, SECRET, entry) if entry else None
        return (before and before.name) != (self.epoch and self.epoch.name)

    def sign(self, key: str, value: bytes) -> bytes:
        """What somebody who knows the secret would write."""
        return sign(self.epoch.records, key, value, 0) if self.epoch and self.name(key) else value

    def key(self, name: str) -> str:
        return self.base + name

    def name(self, key: str) -> str:
        """The key within the run; "" if it is of no run, or of another."""
        return key.removeprefix(self.base) if key.startswith(self.base) else ""

    def plain(self, seen: Entry | Event | Put) -> bytes:
        """The value, or b"" if it is not signed in the epoch that stands."""
        signed = seen.key, seen.value, seen.lease
        return verified(self.epoch.records, *signed) if self.epoch else b""

    def read(self, kind: type[T], seen: Entry | Event | Put) -> T | None:
        """The row, or None if it counts as none."""
        plain = self.plain(seen)
        if (kind, plain) not in self._read:
            self._read[kind, plain] = rows.decode(kind, plain)
        row: T | None = self._read[kind, plain]
        return row

    def kind(self, writes: Sequence[Write]) -> str:
        """What a transaction is for: "elect", "open", "close", "enter", "report" and so on."""
        names = {self.name(write.key): write for write in writes if isinstance(write, Put)}
        if put := names.get(rows.ROUND):
            header = self.read(Header, put)
            if rows.VERDICT in names or header is None:
                return "conclude"
            return "open" if header.phase == "open" else "close"
        if rows.LEADER in names:
            return "elect"
        for name, put in names.items():
            if name.startswith(rows.NODES):
                row = self.read(NodeRow, put)
                return {"inside": "enter", "reported": "report"}.get(
                    row.state if row else "", "row"
                )
            if name.startswith(rows.PLACES):
                return "places"
        return "write"
