"""Defines the bars for collectives within a node."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.bars import Check, of_row
from benchmarks.machine import NEAR
from benchmarks.samples import GLOO, MEMCPY, MPIS, OURS, REGISTERED, Row

_KI, _MI = 2**10, 2**20
_HALVES = {"bfloat16": 10.0, "float16": 15.0}
"""Required ratio of Gloo's time to ours at 16 MiB, by dtype."""


def checks(rows: Iterable[Row]) -> list[Check]:
    """Return a check for every bar that applies to these rows."""
    return [check for row in rows for check in _of_row(row)]


def _of_row(row: Row) -> list[Check]:
    if row.case.dtype in _HALVES:
        return _halves(row)
    if row.case.operation == "barrier":
        return []
    found = _against("no peer is faster", row, (GLOO, *MPIS), 1.0)
    if row.case.operation == "all_reduce":
        found += _two_ranks(row) if row.case.ranks == 2 else _shared_cpus(row)
    return found


def _halves(row: Row) -> list[Check]:
    if row.case.operation != "all_reduce" or row.nbytes != 16 * _MI or row.case.ranks != 2:
        return []
    return _against("half precision", row, (GLOO,), _HALVES[row.case.dtype])


def _two_ranks(row: Row) -> list[Check]:
    found = []
    if row.nbytes == 8:
        ours = row.ratio(OURS, "openmpi")
        found.append(of_row("8 B all_reduce", row, "ours/openmpi", ours, 0.75, at_most=True))
    limit = _times_the_mpis(row)
    if limit is not None:
        found += _against("all_reduce, 2 ranks", row, MPIS, limit)
    if row.nbytes == 256 * _MI:
        found += _in_memcpys(row)
    return found


def _times_the_mpis(row: Row) -> float | None:
    if row.nbytes == 64 * _KI:
        return 1.5
    if _MI <= row.nbytes <= 16 * _MI:
        return 1.7 if row.state == NEAR else None
    return 3.0 if row.nbytes >= 64 * _MI else None


def _in_memcpys(row: Row) -> list[Check]:
    found = [("ordinary buffers", OURS, 1.6)]
    if REGISTERED in row.cells:
        found.append(("registered buffers", REGISTERED, 1.15))
    return [
        of_row(bar, row, f"{name}/memcpy", row.ratio(name, MEMCPY), limit, at_most=True)
        for bar, name, limit in found
    ]


def _shared_cpus(row: Row) -> list[Check]:
    if row.nbytes > _MI:
        return []
    return _against("all_reduce, more ranks", row, MPIS, 1.5)


def _against(bar: str, row: Row, peers: Iterable[str], limit: float) -> list[Check]:
    """Return a check for each peer, as beating the only peer that was measured is not enough."""
    return [of_row(bar, row, f"{name}/ours", row.ratio(name), limit) for name in peers]
