"""Explains why the kernel would not start a program, beyond the name of the error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_LONGEST_LINE = 256
"""Bytes that the kernel reads of a script's first line."""


def why_refused(program: str, number: int) -> str:
    """Explain why exec of `program` failed with the error `number`."""
    first = _first_line(program)
    if number == errno.ENOEXEC and not first.startswith(b"\x7fELF"):
        return "it has no first line like #!/bin/sh, and is no program by itself"
    if number == errno.ENOENT and first.startswith(b"#!") and first.endswith(b"\r"):
        return (
            "its lines end as on Windows, and the carriage return counts as part of the "
            "interpreter's name: run dos2unix on it"
        )
    if number == errno.ENOENT and first.startswith(b"#!"):
        interpreter = os.fsdecode(first[2:].split()[0]) if first[2:].split() else ""
        return f"{os.strerror(number)}: {interpreter!r}, the interpreter in its first line"
    return os.strerror(number)


def _first_line(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.readline(_LONGEST_LINE).rstrip(b"\n")
    except OSError:
        return b""
