"""error.json, the account of a failure that torchrun's @record and ours leave: read and written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torshrun.failure.exits import Exit, how
from torshrun.failure.words import last_words

ACCOUNT_BYTES = 1 << 20
"""How much of a worker's error file is read."""


def load_account(path: str) -> str:
    """What a worker left in its error file, which may be anything at all; "" is nothing."""
    import json

    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return read_account(json.loads(file.read(ACCOUNT_BYTES)))
    except (OSError, ValueError, RecursionError):
        return ""


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would take for ever


def read_account(document: object) -> str:
    """The text of a decoded error.json, in torchrun's form; "" if it is not one."""
    message = document.get("message") if isinstance(document, dict) else None
    if isinstance(message, str):
        return message
    if not isinstance(message, dict):
        return ""
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message") or "")


def write_account(path: str, cause: Exit, now: float) -> None:
    """Leave the root cause where a launcher above this one reads it, in torchrun's form.

    `now` is the time in seconds since 1970. OSError when the file cannot be written.
    """
    import json

    words = last_words(cause)
    message = {
        "message": words.errors[-1] if words.errors else f"rank {cause.rank}: {how(cause)}",
        "errorCode": cause.code,
        "extraInfo": {"py_callstack": "\n".join(words.lines), "timestamp": str(int(now))},
    }
    unfinished = Path(f"{path}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps({"message": message}))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
