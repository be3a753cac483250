"""Finds what a worker said last: traceback, stack of a crash, error file or plain lines. Pure.

The best-known facts come first: the exception that ended its Python, as the start hook noted it;
the error file; the very end of stderr. A traceback that is anywhere else may be of an exception
that was handled long ago.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from torshrun.failure.ending import By, Ending
from torshrun.failure.exits import Exit
from torshrun.failure.tracebacks import (
    ASIDE,
    GROUP_HEADER,
    HEADER,
    NOISE,
    Words,
    block_at,
    error_at,
    find_stack,
    find_trace,
    is_header,
    outside_traces,
    traced_lines,
)
from torshrun.text import printable_lines

TAIL_LINES = 20
"""Lines of a worker's stderr that are examined if it has no traceback."""
BESIDE_LINES = 6
"""Lines of the end of stderr that are shown beside something that tells more."""
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Signals that a process brings upon itself, and for which Python's faulthandler shows a stack."""

_RANK = re.compile(r"^\[rank\d+\]:(?: |$)")  # put before a traceback's lines by torch
_BESIDE = re.compile(
    rf"(?!\[?ERROR\b)(?:{ASIDE.pattern}|{NOISE.pattern}|\s|Call stack:$|Message: |Arguments: |"
    r"[\[(]?\d{2,4}[-/]\d\d[-/]\d\d.*\b(?:DEBUG|INFO|WARNING)\b|"
    r"Set the environment variable HYDRA_FULL_ERROR)"
)
"""Matches what says nothing of an end: logs and warnings of libraries, and lines below them."""
_IN_THREAD = "Exception in thread "
_LAST_TRACE = "the last traceback in its {}"
_HANDLED = "earlier in its {}, an exception that it seems to have handled"
_COMPLAINT = re.compile(
    r"error|fail|fatal|exception|cannot|can't|could not|unable|denied|invalid|refused|no such|"
    r"not found|abort|panic|killed|out of|timed? ?out",
    re.IGNORECASE,
)
_MOST_COMPLAINTS = 5
_BEFORE_FATAL = 3


@lru_cache(maxsize=1024)  # of hundreds of workers it takes time, and several ask
def last_words(exit_: Exit) -> Words:
    """Return what tells most about its end, in the order in which facts are known."""
    lines = stderr_lines(exit_)
    if exit_.raised and exit_.ending.trace:
        return _noted(exit_.ending)
    if exit_.gave_reason and (reason := _accounted(exit_)):
        return replace(reason, is_handled=False)
    stack = trace = accounted = None
    if exit_.signo in CRASHES and not exit_.raised:
        stack = find_stack(lines, _BEFORE_FATAL * (exit_.signo == signal.SIGABRT))
    if exit_.signo in CRASHES or not exit_.signo or exit_.raised:
        trace, accounted = _written(exit_, lines), _accounted(exit_)
    if stack and trace and not stack.frame:  # it crashed while it was ending
        stack = None
    if trace and accounted and trace.is_handled:
        trace = None
    return stack or trace or accounted or _shown(exit_, lines) or _tail(exit_, lines)


def _written(exit_: Exit, lines: Sequence[str]) -> Words | None:
    """Return the traceback in its stderr that counts, or None.

    For a Python that is known not to have ended by an exception, it is one at the very end, which
    was handled, as before a sys.exit(1).
    """
    found = find_trace(lines)
    if found is None:
        return None
    if not exit_.ending.is_watched or exit_.raised:
        is_end = _is_at_end(lines, found)
        return (
            found
            if is_end
            else replace(found, heading=_LAST_TRACE.format(_stream(exit_)), is_handled=True)
        )
    if found.lines[0] not in (HEADER, GROUP_HEADER):  # of a thread, or of what Python ignored
        return None
    error, *more = found.errors[-1].split("\n")
    if _told([*more, *_after(lines, found.lines[-1])]):  # Python gives messages no end
        return None
    kept = len(found.lines) - sum(not line.startswith(" ") for line in more)
    return replace(
        found,
        heading=_LAST_TRACE.format(_stream(exit_)),
        lines=found.lines[:kept],
        errors=(*found.errors[:-1], error),
        is_handled=True,
    )


def _shown(exit_: Exit, lines: Sequence[str]) -> Words | None:
    """Return the exception that it wrote just before it ended, to where nobody else looks, such as
    a log of its own; None if its last line tells another reason.
    """
    ending = exit_.ending
    if not ending.was_shown or not ending.errors or (lines and _COMPLAINT.search(lines[-1])):
        return None
    if ending.errors[-1].split("\n")[0] in lines or shows_usage(exit_):
        return None
    return replace(_noted(ending), heading=_WRITTEN, is_handled=True)


_WRITTEN = "the traceback of an exception that it had handled, and written to a log"


def _is_at_end(lines: Sequence[str], found: Words) -> bool:
    """Return whether nothing follows but what Python and libraries write when they end."""
    return not _told(_after(lines, found.lines[-1]))


def _after(lines: Sequence[str], last: str) -> Sequence[str]:
    """Return the lines after the last one that equals `last`; all if there is none."""
    found = (n + 1 for n in reversed(range(len(lines))) if lines[n] == last)
    return lines[next(found, 0) :]


def _told(lines: Sequence[str]) -> list[str]:
    """Return the lines that are no part of tracebacks, and that no library writes aside."""
    return [line for line in outside_traces(lines) if line.strip() and not _BESIDE.match(line)]


def said_last(words: Words) -> list[str]:
    """Return the lines with which it seems to have ended without an exception, in their order."""
    last = words.complaints or words.lines
    return _told(last) or [line for line in last if line.strip()]


def beside(exit_: Exit, words: Words) -> list[Words]:
    """Return what else its stderr has: an exception that did not end it, and the last lines."""
    lines = stderr_lines(exit_)
    trace = find_trace(lines) if not words.errors and not exit_.stopped else None
    found = []
    if trace and not set(trace.lines[1:]) <= set(words.lines):
        found.append(replace(trace, heading=_HANDLED.format(_stream(exit_))))
    if words.errors and lines and lines[-1] not in words.lines:
        tail = _after(lines, words.lines[-1])[-BESIDE_LINES:]
        heading = f"the last lines of its {_stream(exit_)}"
        found.append(Words(heading=heading, lines=tuple(tail)))
    return found


def _stream(exit_: Exit) -> str:
    return "output" if exit_.has_stdout else "stderr"


def _tail(exit_: Exit, lines: Sequence[str]) -> Words:
    """Return the last lines. If both streams are in one, lines that complain are returned as well,
    if more was printed after them.
    """
    heading = f"the last lines of its {_stream(exit_)}" if lines else ""
    tail = Words(heading=heading, lines=tuple(lines[-TAIL_LINES:]))
    return _mixed(tail, lines) if exit_.has_stdout else tail


def _mixed(tail: Words, lines: Sequence[str]) -> Words:
    traced = traced_lines(lines)  # which are of exceptions that were handled
    outside = [n for n in range(len(lines)) if n not in traced]
    complaints = [n for n in outside if _COMPLAINT.search(lines[n])][-_MOST_COMPLAINTS:]
    shown = {*complaints, *range(len(lines))[len(complaints) - TAIL_LINES :]}
    return replace(
        tail,
        lines=tuple(lines[n] for n in sorted(shown)),
        complaints=tuple(lines[n] for n in complaints),
    )


def shows_usage(exit_: Exit) -> bool:
    """Return whether it ended like a command that refuses its arguments and shows its usage."""
    return exit_.code == 2 and any(
        line.lower().startswith("usage: ") for line in stderr_lines(exit_)
    )


def find_thread_error(exit_: Exit) -> str:
    """Return the last exception that ended one of its threads; "" if none did."""
    lines = stderr_lines(exit_)
    heads = (n for n in reversed(range(len(lines))) if lines[n].startswith(_IN_THREAD))
    for head in heads:
        starts = [n for n in range(head, min(head + 3, len(lines))) if is_header(lines[n])]
        block = block_at(lines, starts[0]) if starts else None
        if block:
            return error_at(lines, block)
    return ""


def stderr_lines(exit_: Exit) -> list[str]:
    """Return the end of its stderr, as a terminal shows it."""
    return _lines(exit_.stderr.decode("utf-8", "backslashreplace"))


def _lines(text: str) -> list[str]:
    return [_RANK.sub("", line) for line in printable_lines(text)]


_HEADINGS: Mapping[By, str] = {
    "": "the traceback of an exception that had not got to its end",
    "exception": "its traceback",
    "exit": "the traceback of the exception that it handled when it called sys.exit()",
    "left": "the traceback of the exception that it handled when it called os._exit()",
}


def _noted(ending: Ending) -> Words:
    """Return the exception that ended its Python."""
    lines = _lines(ending.trace)
    heading = _HEADINGS[ending.by]
    heads = [n for n in range(1, len(lines)) if lines[n] in (HEADER, GROUP_HEADER)]
    return Words(
        heading=heading,
        lines=tuple(lines),
        errors=ending.errors or tuple(lines[-1:]),
        frame=ending.frame,
        ends=(*heads, len(lines)),
    )


def _accounted(exit_: Exit) -> Words | None:
    """Return what its error file says; None if that is empty.

    If the exception did not end its Python, the worker may have left that file long before.
    """
    lines = _lines(exit_.account.text)
    if not lines:
        return None
    trace = find_trace(lines) or Words(heading="", errors=(lines[0],))
    handled = exit_.ending.is_watched and not exit_.raised
    heading = "from its error file"
    return replace(trace, heading=heading, lines=tuple(lines), is_handled=handled)
