"""Finds what a worker wrote besides the cause of its end, which may explain other ends. Pure."""

from __future__ import annotations

import re

from torshrun.failure.exits import Exit
from torshrun.failure.last_words import find_thread_error, last_words, stderr_lines
from torshrun.failure.numbers import Numbers, numbers_in
from torshrun.failure.suspect import Suspect, from_words
from torshrun.failure.tracebacks import before_trace, find_trace, outside_traces
from torshrun.text import printable_lines

MOST_LINES = 200
"""Lines of stderr in which a worker may complain while it continues."""
_COMPLAINS = re.compile(rb"client socket has|ailed to connect")
_NATIVE_FRAME = re.compile(r"(?:\[rank\d+\]:)?frame #")
_NUMBERS = re.compile(rb"RuntimeWarning: (?:invalid value|divide by zero|overflow) encountered.*")
_TOLD_CHARS, _MOST_TOLD = 200, 2
_NOT_MADE = re.compile(
    r"\b(?:could not|couldn't|cannot|can't|did not|unable to|fail(?:ed|ure)?|error|problem|not|"
    r"skipp(?:ed|ing))(?: to| in| when| while)?:? (?:be )?(?:re|over)?(?:wr[io]t|sav|creat|mak|"
    r"made|dump|export|stor|generat|build|built|prepar|produc|download|extract|unpack|cop[yi]|"
    r"renam|mov)",
    re.IGNORECASE,
)
_OF_FILE = re.compile(r"^(?:PermissionError|OSError|IsADirectoryError|NotADirectoryError): ")
"""Matches an exception that was handled, or that followed only from those of other ranks."""
_FILE = re.compile(r"[\w-]\.[A-Za-z]\w*|\w/\w|/\w")


def thread_error(exit_: Exit) -> str:
    """Return the error that ended one of its threads; "" if none did."""
    said = find_thread_error(exit_)
    return said.split("\n")[0][:_TOLD_CHARS]


def warning(exit_: Exit) -> str:
    """Return a warning of NaN or infinite numbers, as numpy writes it; "" if there is none."""
    found = _NUMBERS.search(exit_.stderr)
    return found[0].decode(errors="replace")[:_TOLD_CHARS] if found else ""


def numbers(exit_: Exit) -> Numbers | None:
    """Return what it wrote of its numbers, outside of tracebacks; None if it wrote nothing."""
    return numbers_in(outside_traces(stderr_lines(exit_)))


def muttered(exit_: Exit) -> Suspect | None:
    """Return whom a stopped worker had complained about without effect, as torch's store does."""
    if not _COMPLAINS.search(exit_.stderr):  # which is fast
        return None
    lines = printable_lines(exit_.stderr.decode("utf-8", "backslashreplace"))[-MOST_LINES:]
    blames = (from_words([line]) for line in reversed(lines) if not _NATIVE_FRAME.match(line))
    return next((blame for blame in blames if blame and blame.weak and blame.ranks), None)


def unmade(exit_: Exit) -> str:
    """Return the lines where it said that it could not make a file; "" if there are none.

    It may have continued after that.
    """
    lines = [line[:_TOLD_CHARS] for line in stderr_lines(exit_)[-MOST_LINES:]]
    told = [line for line in lines if _FILE.search(line) and _is_not_made(line)]
    return "; ".join(told[-_MOST_TOLD:])


def removed(exit_: Exit) -> str:
    """Return the line where it last said that it removes or moves files, with all of these, or with
    their folders if they are many; "" if it did not.
    """
    lines = [line[:_TOLD_CHARS] for line in outside_traces(stderr_lines(exit_))[-MOST_LINES:]]
    told = [line for line in lines if _REMOVES.search(line) and _FILE.search(line)]
    if not told:
        return ""
    named = dict.fromkeys(path for line in told[:-1] for path in PATH_IN_WORDS.findall(line))
    paths = [path for path in named if "/" in path.strip("/") and path not in told[-1]]
    if sum(map(len, paths)) > _TOLD_CHARS:
        paths = [*dict.fromkeys(f"{path.rpartition('/')[0]}/" for path in paths)]
    return "; ".join([told[-1], *([f"before: {', '.join(paths)}"] if paths else [])])


PATH_IN_WORDS = re.compile(r"[\w./~-]*[\w/-]")


_REMOVES = re.compile(
    r"\b(?:delet|remov|unlink|prun|purg|evict|discard|clean|clear|eras|wip|dropp|renam|mov|rotat|"
    r"replac|expir)(?:e|es|ed|ing|s)?\b",
    re.IGNORECASE,
)


def logged(exit_: Exit) -> str:
    """Return the last exception that it had handled and written, in one line; "" is none."""
    lines, ended = stderr_lines(exit_), {*last_words(exit_).errors}
    trace = find_trace(lines)
    while trace and ended & {*trace.errors}:
        lines = before_trace(lines)
        trace = find_trace(lines)
    return trace.errors[-1].split("\n")[0][:_TOLD_CHARS] if trace else ""


def _is_not_made(line: str) -> bool:
    return bool(_NOT_MADE.search(line) or _OF_FILE.match(line))
