"""Lines of source below the frames of a stack that names only their numbers, with the clean-up, or
the loop that waits for a file or for all ranks, that they belong to.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence

from torshrun.procfs import read_text

MOST_FILES = 16
"""Files that are read for one stack."""
FILE_BYTES = 1 << 20
"""Longer ones are read up to there."""
_BLOCK = re.compile(r"(finally|except)\b.*:")
_WITH = re.compile(r"\s*(?:async )?with\b")
_LOOP = re.compile(
    r"while (?:not .*\b(?:exists|is_file|is_dir|isfile|isdir)\(|"
    r"(?:not )?.*[<>=].*(?i:world|n_?proc|n_?ranks|num_proc|num_ranks)).*:"
)
_REPEATS = re.compile(r"(?:while|(?:async )?for)\b.*")
_IF = re.compile(r"(?:if|elif)\b.*:")
_OUTERMOST = re.compile(r"(?:async )?def |class ")
MOST_LINES = 500
"""Lines of source that are looked at above the one where a frame stands."""
_FRAME = re.compile(r'^ +File "(?P<path>[^"<]+)", line (?P<line>[0-9]{1,6}) in ')


def with_sources(stack: str) -> str:
    """Return a stack of faulthandler's with the source lines of its frames.

    Lines are missing if the program's files are gone or are not text. Reading them takes time.
    """
    return "\n".join(_lines(stack))


def is_passing_through(path: str, number: int) -> bool:
    """Return whether an exception that is being handled at this line continues after it.

    It does if there is a `finally`, or the end of a `with`.
    """
    lines = (read_text(path, FILE_BYTES) if _is_open(path) else "").split("\n")
    source = lines[max(number - MOST_LINES, 0) : number] if number <= len(lines) else []
    if not source or not source[-1].strip():
        return False
    return bool(_WITH.match(source[-1])) or _clean_up(source).endswith("finally")


def conditions(path: str, number: int) -> str:
    """Return the conditions of the `if`s around this line of a function, the innermost first.

    Return "" if none are known.
    """
    lines = (read_text(path, FILE_BYTES) if _is_open(path) else "").split("\n")
    source = lines[max(number - MOST_LINES, 0) : number] if number <= len(lines) else []
    found: list[str] = []
    depth = _depth(source[-1]) + 1 if source and source[-1].strip() else 0
    for line in reversed(source):
        text = line.strip()
        if not text or text.startswith("#") or _depth(line) >= depth:
            continue
        if _OUTERMOST.match(text):
            break
        depth = _depth(line)
        found += [text] if _IF.match(text) else []
    return "; ".join(found)


def _lines(stack: str) -> Iterator[str]:
    files: dict[str, list[str]] = {}
    for line in stack.splitlines():
        yield line
        frame = _FRAME.match(line)
        if not frame:
            continue
        path, number = frame["path"], int(frame["line"])
        if path not in files and len(files) < MOST_FILES:
            files[path] = (read_text(path, FILE_BYTES) if _is_open(path) else "").split("\n")
        source = files.get(path, [])[max(number - MOST_LINES, 0) : number]
        if source and number and source[-1].strip():
            yield f"    {source[-1].strip()}{_clean_up(source)}"


def _is_open(path: str) -> bool:
    """Return whether a worker that is another user might read the file: it may name any file."""
    try:
        found = os.stat(path)  # noqa: PTH116  (pathlib costs more)
    except (OSError, ValueError):
        return False
    own = found.st_uid == os.getuid() != 0
    return own or bool(found.st_mode & stat.S_IROTH)


def _clean_up(source: Sequence[str]) -> str:
    """Return as a comment to which block the last of these lines of Python belongs; "" if to none.

    The block is an except, perhaps of a loop, or a finally, or a loop that waits for a file or
    counts ranks. The indentation alone decides: what comes from a worker is not parsed.
    """
    depth = _depth(source[-1]) + 1  # the block may stand in one line
    for place, line in [*enumerate(source)][::-1]:
        text = line.strip()
        if not text or text.startswith("#") or _depth(line) >= depth:
            continue
        block = _BLOCK.match(text)
        if block:
            in_loop = block[1] == "except" and _is_in_loop(source[:place], _depth(line))
            return f"  # in {block[1]}{' of a loop' if in_loop else ''}"
        if _LOOP.match(text):
            return f"  # in {text}"
        if _OUTERMOST.match(text):
            break
        depth = _depth(line)
    return ""


def _is_in_loop(source: Sequence[str], depth: int) -> bool:
    """Return whether what follows these lines at this depth is in a loop of the same function."""
    for line in reversed(source):
        text = line.strip()
        if not text or text.startswith("#") or _depth(line) >= depth:
            continue
        if _REPEATS.match(text):
            return True
        if _OUTERMOST.match(text):
            break
        depth = _depth(line)
    return False


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
