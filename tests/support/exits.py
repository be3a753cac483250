"""Exits made up for the purpose."""

from __future__ import annotations

from typing import Any

from torshrun.failure.account import Account
from torshrun.failure.exits import Exit

PEER_LOST = (
    b'noise\nTraceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
    b"torsh_runtime.errors.PeerLost: rank 1 was lost during all_reduce\n"
)
VALUE_ERROR = b'Traceback (most recent call last):\n  File "t.py", line 3\nValueError: bad\n'


def an_exit(rank: int, status: int, **facts: Any) -> Exit:
    """An exit with this status, as waitpid gives it, and `facts`; an account may be its text."""
    if isinstance(facts.get("account"), str):
        facts["account"] = Account(text=facts["account"])
    values = {"host": "h", "pid": 100 + rank, "seconds": 1.25, "stopped": False, **facts}
    return Exit(rank=rank, status=status, **values)


def raised(*errors: str) -> bytes:
    """The stderr of a script in which these exceptions were raised, each from the one before."""
    chained = "\nThe above exception was the direct cause of the following exception:\n\n"
    traces = [
        f'Traceback (most recent call last):\n  File "t.py", line {number}, in f\n{error}\n'
        for number, error in enumerate(errors, 1)
    ]
    return chained.join(traces).encode()
