"""error.json, the account of a failure that torchrun's @record and ours leave: read and written."""

from __future__ import annotations

import os
from pathlib import Path

from torshrun.failure.account import ACCOUNT_BYTES, Account, parse
from torshrun.failure.exits import Exit, how
from torshrun.failure.last_words import last_words
from torshrun.procfs import read_text


def load_account(path: str) -> Account:
    """Return what a worker left in its error file."""
    return parse(read_text(path, ACCOUNT_BYTES))


def write_account(path: str, cause: Exit, now: float, report: str = "") -> None:
    """Write the root cause, with the report for people, where a launcher above this one reads it.

    Raises OSError.
    """
    import json

    words = last_words(cause)
    message = {
        "message": words.errors[-1] if words.errors else f"rank {cause.rank}: {how(cause)}",
        "errorCode": cause.code,
        "extraInfo": {
            "py_callstack": "\n".join(words.lines),
            "timestamp": str(int(now)),
            "rank": cause.rank,
            "pid": cause.pid,
            "status": cause.status,
            "report": report,
        },
    }
    unfinished = Path(f"{path}.{os.getpid()}")
    try:
        with unfinished.open("x") as file:  # never through a link that waits there
            json.dump({"message": message}, file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
