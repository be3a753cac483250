"""Lines of source below the frames of a stack that names only their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torshrun.procfs import read_text

MOST_FILES = 16
"""Files that are read for one stack."""
FILE_BYTES = 1 << 20
"""Longer ones are read up to there."""
_FRAME = re.compile(r'^ +File "(?P<path>[^"<]+)", line (?P<line>[0-9]{1,6}) in ')


def with_sources(stack: str) -> str:
    """A stack of faulthandler's, with the lines that its frames stand at, as far as the files of
    the program are still there and are text. Takes the time to read them.
    """
    return "\n".join(_lines(stack))


def _lines(stack: str) -> Iterator[str]:
    files: dict[str, list[str]] = {}
    for line in stack.splitlines():
        yield line
        frame = _FRAME.match(line)
        if not frame:
            continue
        path, number = frame["path"], int(frame["line"])
        if path not in files and len(files) < MOST_FILES:
            files[path] = read_text(path, FILE_BYTES).split("\n")
        source = files.get(path, [])[number - 1 : number]
        yield from (f"    {text.strip()}" for text in source if text.strip())
