"""How what stands in the store is read from outside: the one place that knows its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torsh_runtime.store.base import Put, Write
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import Header, NodeRow

T = TypeVar("T")


class Codec:
    """Keys and rows of one run."""

    def __init__(self, run_id: str) -> None:
        self.base = rows.base(run_id)
        self._read: dict[tuple[type[Any], bytes], Any] = {}

    def key(self, name: str) -> str:
        return self.base + name

    def name(self, key: str) -> str:
        """The key within the run; "" if it is of no run, or of another."""
        return key.removeprefix(self.base) if key.startswith(self.base) else ""

    def read(self, kind: type[T], key: str, value: bytes) -> T | None:
        """The row, or None if it counts as none."""
        if (kind, value) not in self._read:
            self._read[kind, value] = rows.decode(kind, value)
        row: T | None = self._read[kind, value]
        return row

    def kind(self, writes: Sequence[Write]) -> str:
        """What a transaction is for: "elect", "open", "close", "enter", "report" and so on."""
        names = {self.name(write.key): write for write in writes if isinstance(write, Put)}
        if put := names.get(rows.ROUND):
            header = self.read(Header, put.key, put.value)
            if rows.VERDICT in names or header is None:
                return "conclude"
            return "open" if header.phase == "open" else "close"
        if rows.LEADER in names:
            return "elect"
        for name, put in names.items():
            if name.startswith(rows.NODES):
                row = self.read(NodeRow, put.key, put.value)
                return {"inside": "enter", "reported": "report"}.get(
                    row.state if row else "", "row"
                )
            if name.startswith(rows.PLACES):
                return "places"
        return "write"
