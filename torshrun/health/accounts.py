"""Keeps, for torshctl explain, each node's account of a failed round, and the root cause."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torshrun.procfs import read_text
from torshrun.safe_files import Folder
from torshrun.text import printable

ACCOUNT_BYTES = 1 << 20
_MOST_NODES = 1 << 14
_STACK_CHARS = 1 << 15
_NAME = re.compile(r"account_[0-9]{1,6}\.json")
TOGETHER = 60.0
"""Seconds within which the nodes of one round keep theirs."""


class Account(NamedTuple):
    """Holds what one node's agent has kept of a round."""

    run_id: str
    round: int
    node: int
    """The rank of the node."""
    host: str
    ranks: range
    testimony: str
    """The node's testimony, in the form of failure/exported_reports.py."""
    stacks: Mapping[int, str]
    """The stacks of ranks when they hung."""


class Kept(NamedTuple):
    """Holds what is kept of one round."""

    accounts: list[Account]
    """The accounts, in the order of their nodes."""
    findings: list[str]
    """The root cause as nodes learned it, in the form of failure/exported_reports.py."""


def save_account(folder: Folder, account: Account) -> None:
    """Save the account of a node. Raises OSError."""
    told = {
        "run_id": account.run_id[:256],
        "round": account.round,
        "node": account.node,
        "host": account.host,
        "first_rank": account.ranks.start,
        "ranks": len(account.ranks),
        "testimony": account.testimony,
        "stacks": {str(rank): text for rank, text in account.stacks.items()},
    }
    content, most = json.dumps(told).encode(), _STACK_CHARS
    while len(content) > ACCOUNT_BYTES and most:  # or nobody could read it
        most //= 2
        told["stacks"] = {str(rank): text[:most] for rank, text in account.stacks.items()}
        content = json.dumps(told).encode()
    write_kept(folder, account.round, f"account_{account.node}.json", content)


def save_finding(folder: Folder, number: int, node: int, finding: str) -> None:
    """Save the root cause of round `number`, encoded by failure/exported_reports.py.

    Raises OSError.
    """
    write_kept(folder, number, f"finding_{node}.json", finding.encode())


def write_kept(folder: Folder, number: int, name: str, content: bytes) -> None:
    """Write a file of round `number` that has only this content. Raises OSError."""
    path = f"{folder.path}/attempt_{number}/{name}"
    with os.fdopen(folder.open_for_append(path), "wb") as file:
        file.truncate(0)
        file.write(content)


def files_below(folder: Path, pattern: str) -> list[tuple[float, str]]:
    """Return when each file was written, and its path, the oldest first; broken links are left out.

    Raises OSError.
    """
    found = []
    for path in folder.rglob(pattern):
        with suppress(OSError):
            found.append((path.stat().st_mtime, str(path)))
    return sorted(found)


def load_newest(folder: Path) -> Kept:
    """Return what all nodes kept of the newest round of which anything is kept below the folder.

    Whatever makes no sense is ignored. Raises OSError.
    """
    files = files_below(folder, "account_*.json")
    found = [
        (time, path, account)
        for time, path in files[-_MOST_NODES:]
        if _NAME.fullmatch(Path(path).name) and (account := _load(path))
    ]
    if not found:
        return Kept([], [])
    ended, _, newest = found[-1]
    mine = {
        account.node: (account, path)
        for time, path, account in found
        if time >= ended - TOGETHER
        and (account.run_id, account.round) == (newest.run_id, newest.round)
    }
    own = [mine[node] for node in sorted(mine)]
    findings = [read_text(_finding_beside(path), ACCOUNT_BYTES) for _, path in own]
    return Kept([account for account, _ in own], [*filter(None, findings)])


def _finding_beside(path: str) -> Path:
    return Path(path).with_name(Path(path).name.replace("account", "finding"))


def _load(path: str) -> Account | None:
    with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return _read(json.loads(read_text(path, ACCOUNT_BYTES)))
    return None


def _read(told: Mapping[str, Any]) -> Account:
    first, count = int(told["first_rank"]), int(told["ranks"])
    stacks = {int(rank): _lines(str(text)) for rank, text in told["stacks"].items()}
    ranks = range(first, first + min(count, 1 << 16))
    host, testimony = printable(str(told["host"])), str(told["testimony"])
    run_id, number = printable(str(told["run_id"])), int(told["round"])
    return Account(run_id, number, int(told["node"]), host, ranks, testimony, stacks)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text[:_STACK_CHARS].splitlines()))
