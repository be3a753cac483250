"""Ports and paths that a worker's words name. Pure."""

from __future__ import annotations

import re

_PORT = re.compile(r"\bport[:= ]+(\d{1,5})\b|(?:\w|\]):(\d{2,5})\b(?![:\d])|['\"], (\d{1,5})\)")
_IN_USE = re.compile(r"in use|EADDRINUSE", re.IGNORECASE)
_NO_SPACE = re.compile(r"(?:No space left on device|quota exceeded)[^'\n]*'([^'\n]+)'")
LINE_CHARS = 1000
"""Characters of a line that are looked at."""


def port_in(said: str) -> int:
    """Return the port that is in use by these words; 0 if they do not name it."""
    lines = [line[:LINE_CHARS] for line in said.splitlines() if _IN_USE.search(line[:LINE_CHARS])]
    found = next(filter(None, map(_PORT.search, lines)), None)
    port = int(next(filter(None, found.groups()))) if found else 0
    return port if port < 1 << 16 else 0


def path_in(said: str) -> str:
    """Return the file for which there was no space by these words; "" if they do not name it."""
    found = _NO_SPACE.search(said)
    return found[1] if found else ""
