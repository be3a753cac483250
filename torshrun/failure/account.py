"""Reads what a worker left in its error file: torchrun's account, and our own fields. Pure.

{"message": {"message", "extraInfo": {"py_callstack", "timestamp"}}, "torsh": {"blame", "call",
"recorded", "at", "is_end", "versions"}}; torsh_runtime/error_file.py writes it. Workers write what
they like, so everything is checked here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.suspect import Suspect, from_account
from torshrun.text import printable

ACCOUNT_BYTES = 1 << 20
"""The most bytes that are read of a worker's error file."""
_CALL_CHARS = 200
_MOST_VERSIONS = 16
_VERSION_CHARS = 40
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A worker's own account of its failure."""

    text: str = ""
    """The worker's traceback, or else its message; "" is none."""
    blame: Suspect | None = None
    """The ranks that its error blames, if that is an error of torsh_runtime."""
    call: str = ""
    """The collective that failed, with its arguments; "" is unknown."""
    recorded: BlockedAt | None = None
    """The last one that torch's recorder knows of; None is unknown."""
    at: float = 0.0
    """The time when it was written, on the node's monotonic clock, in seconds; 0 is unknown."""
    is_end: bool = False
    """True if the process ended itself because of the error right after it had written this."""
    versions: Mapping[str, str] = field(default_factory=lambda: _NONE, hash=False)
    """Versions of Python and of the libraries that it had loaded."""


NO_ACCOUNT = Account()


def parse(content: str) -> Account:
    """Return the account in an error file with this content; NO_ACCOUNT if it has another form."""
    try:
        document = json.loads(content or "null")
    except (ValueError, RecursionError):
        return NO_ACCOUNT
    if not isinstance(document, dict):
        return NO_ACCOUNT
    own = document.get("torsh")
    own = own if isinstance(own, dict) else {}
    return Account(
        text=_text(document.get("message")),
        blame=from_account(own.get("blame")),
        call=_short(own.get("call")),
        recorded=_recorded(own.get("recorded")),
        at=_moment(own.get("at")),
        is_end=own.get("is_end") is True,
        versions=_versions(own.get("versions")),
    )


def _moment(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0.0


def _text(message: object) -> str:
    if isinstance(message, str):
        return message
    if not isinstance(message, dict):
        return ""
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    words = (stack, message.get("message"))
    return next((each for each in words if isinstance(each, str) and each), "")


def _short(value: object) -> str:
    return printable(value[:_CALL_CHARS]) if isinstance(value, str) else ""


def _recorded(value: object) -> BlockedAt | None:
    if not isinstance(value, dict):
        return None
    number, group, call = value.get("number"), value.get("group"), _short(value.get("call"))
    if type(number) is not int or not 0 < number < 1 << 53 or not isinstance(group, str):
        return None
    name = zlib.crc32(group[:_CALL_CHARS].encode(errors="replace"))
    return BlockedAt(last=call, group=name, sequence=number, entered={name: number})


def _versions(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or len(value) > _MOST_VERSIONS:
        return _NONE
    return {
        printable(str(name)[:_VERSION_CHARS]): printable(version[:_VERSION_CHARS])
        for name, version in value.items()
        if isinstance(version, str)
    }
