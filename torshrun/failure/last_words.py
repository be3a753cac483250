"""What a worker said last: traceback, stack of a crash, error file or plain lines. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torshrun.failure.exits import Exit
from torshrun.text import printable_lines

TAIL_LINES = 20
"""How many lines of a worker's stderr are looked at where it holds no traceback."""
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Signals that a process brings upon itself, and for which Python's faulthandler shows a stack."""

_HEADER = "Traceback (most recent call last):"
_ORIGINAL = f"Original {_HEADER}"  # within the message of an error that crossed processes
_GROUP = f"  + Exception Group {_HEADER}"
_NESTED = re.compile(r"^[ |+]+(?:Exception Group )?Traceback ")
_GROUP_TITLE = re.compile(r"^  \| [^ ]")
_GROUP_END = re.compile(r"^ +\+-{36}$")
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_RANK = re.compile(r"^\[rank\d+\]:(?: |$)")  # put before a traceback's lines by torch
_FRAME = re.compile(r'^[ |]*File "([^"]+)", line (\d+)')
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_ASIDE = re.compile(
    r"^(?:Exception ignored |Exception in (?:thread|callback) |Error in (?:atexit|sys)\b|"
    r"Process \S+:$|--- Logging error ---|future: <)"
)
_NOISE = re.compile(
    r"^\[?[IWEF]\d{4} |^\[?(?:DEBUG|INFO|WARNING|ERROR)\b|^\S+:\d+: \w*Warning: |"
    r"^Fatal Python error: |^terminate called "
)
_FATAL = re.compile(r"^Fatal Python error: ")
_CRASHED_THREAD = re.compile(r"^(?:Current t|T)hread .*\(most recent call first\):")
_COMPLAINT = re.compile(
    r"error|fail|fatal|exception|cannot|can't|could not|unable|denied|invalid|refused|no such|"
    r"not found|abort|panic|killed|out of|timed? ?out",
    re.IGNORECASE,
)
_MOST_COMPLAINTS = 5
_MESSAGE_LINES = 25
_MESSAGE_UNINDENTED = 5
_BEFORE_FATAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The part of what a worker said that tells most about its end."""

    heading: str
    """What it is, for a reader; "" if there is nothing."""
    lines: tuple[str, ...] = ()
    """Its lines, as a terminal shows them."""
    errors: tuple[str, ...] = ()
    """The exceptions in it with their messages, the last one raised last; () if it has none."""
    frame: str = ""
    """The innermost frame as "path:line"; "" is unknown."""
    complaints: tuple[str, ...] = ()
    """Of plain lines with those of stdout among them, the ones that count for the cause."""
    innermost_first: bool = False
    """Whether the lines that matter most are the first ones."""


@lru_cache(maxsize=1024)  # of hundreds of workers it takes time, and several ask
def last_words(exit_: Exit) -> Words:
    """The crash's stack, else the last traceback, else the error file, else stderr's end."""
    lines = _lines(exit_.stderr.decode("utf-8", "backslashreplace"))
    crashed = exit_.signo in CRASHES
    stack = find_stack(lines, _BEFORE_FATAL * (exit_.signo == signal.SIGABRT)) if crashed else None
    trace = find_trace(lines) if crashed or not exit_.signo or exit_.raised else None
    if stack and trace and not stack.frame:  # it crashed while it was ending
        stack = None
    tail = _mixed_tail(lines) if exit_.has_stdout else _tail(lines, "stderr")
    return stack or trace or _accounted(exit_.account.text) or tail


def _tail(lines: Sequence[str], stream: str) -> Words:
    heading = f"the last lines of its {stream}" if lines else ""
    return Words(heading=heading, lines=tuple(lines[-TAIL_LINES:]))


def _mixed_tail(lines: Sequence[str]) -> Words:
    """Of both streams in one: with lines that complain, though more was printed after them."""
    complaints = [n for n, line in enumerate(lines) if _COMPLAINT.search(line)][-_MOST_COMPLAINTS:]
    shown = {*complaints, *range(len(lines))[len(complaints) - TAIL_LINES :]}
    return replace(
        _tail(lines, "output"),
        lines=tuple(lines[n] for n in sorted(shown)),
        complaints=tuple(lines[n] for n in complaints),
    )


def find_thread_error(exit_: Exit) -> str:
    """The exception that ended a thread of its, the last one; "" if none did."""
    lines = _lines(exit_.stderr.decode("utf-8", "backslashreplace"))
    trace = find_trace(lines)
    in_thread = trace is not None and trace.lines[0].startswith("Exception in thread ")
    return trace.errors[-1] if trace and in_thread else ""


def _lines(text: str) -> list[str]:
    return [_RANK.sub("", line) for line in printable_lines(text)]


def find_trace(lines: Sequence[str]) -> Words | None:
    """The last whole traceback with its chain; another thread's only if there is no other."""
    found = [number for number, line in enumerate(lines) if _is_header(line)]
    aside = None
    while found:
        block = _chain(lines, found)
        if block and not _ASIDE.match(_line_before(lines, block[0][0])):
            return _trace(lines, block)
        aside = aside or block
    return _trace(lines, aside) if aside else _syntax_error(lines)


def find_stack(lines: Sequence[str], num_before: int) -> Words | None:
    """What faulthandler writes of the thread with the error, and `num_before` lines before it."""
    fatal = _last(lines, _FATAL)
    if fatal is None:
        return None
    heads = [n for n in range(fatal, len(lines)) if _CRASHED_THREAD.match(lines[n])]
    current = [n for n in heads if lines[n].startswith("Current")] or heads[:1]
    stack = lines[current[0] : _end_of_indented(lines, current[0] + 1)] if current else []
    before = [line for line in lines[max(0, fatal - num_before) : fatal] if line.strip()]
    return Words(
        heading="its stack, innermost call first",
        lines=(*before, lines[fatal], *stack),
        errors=(lines[fatal],),
        frame=next(map(_place, filter(_FRAME.match, stack)), ""),
        innermost_first=True,
    )


_Block = tuple[int, int, int]
"""Where a traceback begins, where its exception stands and where that one's message ends."""


def _is_header(line: str) -> bool:
    if not line.endswith(_HEADER) or line.endswith(_ORIGINAL):
        return False
    return line == _GROUP or not _NESTED.match(line)  # what may stand before it: a progress bar


def _chain(lines: Sequence[str], found: list[int]) -> list[_Block]:
    """The blocks that end with the last header, whose headers leave `found`; none if incomplete."""
    blocks: list[_Block] = []
    while found:
        start = found.pop()
        block = _block(lines, start)
        if block is None:
            break
        blocks.insert(0, block)
        if _line_before(lines, start) not in _CHAINED:
            break
    return blocks


def _block(lines: Sequence[str], start: int) -> _Block | None:
    if lines[start] == _GROUP:
        return _group(lines, start)
    error = _end_of_indented(lines, start + 1)
    complete = error > start + 1 and error < len(lines) and lines[error].strip()
    return (start, error, _end_of_message(lines, error)) if complete else None


def _group(lines: Sequence[str], start: int) -> _Block | None:
    end = next((n for n in range(start + 1, len(lines)) if lines[n] == _GROUP), len(lines))
    inside = range(start + 1, end)
    title = next((n for n in inside if _GROUP_TITLE.match(lines[n])), None)
    ends = (n + 1 for n in inside if _GROUP_END.match(lines[n]))
    over = next((n for n in ends if not "".join(lines[n : n + 1]).startswith("  ")), None)
    return (start, title, over) if title and over else None


def _end_of_indented(lines: Sequence[str], start: int) -> int:
    inside = (n for n in range(start, len(lines)) if not lines[n].startswith("  "))
    return next(inside, len(lines))


def _end_of_message(lines: Sequence[str], error: int) -> int:
    """Where an exception's message and notes end: Python gives them no end."""
    unindented = 0
    limit = min(len(lines), error + _MESSAGE_LINES)
    for number in range(error + 1, limit):
        line = lines[number]
        unindented += line[:1] not in " \t"
        over = unindented > _MESSAGE_UNINDENTED or _is_header(line)
        if over or not line.strip() or _ASIDE.match(line) or _NOISE.match(line):
            return number
    return limit


def _line_before(lines: Sequence[str], start: int) -> str:
    before = (lines[n] for n in range(start - 1, -1, -1) if lines[n].strip())
    return next(before, "")


def _trace(lines: Sequence[str], blocks: Sequence[_Block]) -> Words:
    shown: list[str] = []
    for start, _, end in blocks:
        chained = _line_before(lines, start)
        shown += ["", chained, ""] if shown else [chained] if _ASIDE.match(chained) else []
        shown += [_GROUP if lines[start] == _GROUP else _HEADER, *lines[start + 1 : end]]
    start, error, _ = blocks[-1]
    frames = [line for line in lines[start:error] if _FRAME.match(line)]
    return Words(
        heading="its traceback",
        lines=tuple(shown),
        errors=tuple(_error(lines, block) for block in blocks),
        frame=_place(frames[-1]) if frames else "",
    )


def _error(lines: Sequence[str], block: _Block) -> str:
    start, error, end = block
    if lines[start] == _GROUP:
        return lines[error].removeprefix("  | ")
    return "\n".join(lines[error:end])


def _syntax_error(lines: Sequence[str]) -> Words | None:
    """A script that cannot be parsed has no traceback, but the place all the same."""
    error = _last(lines, _SYNTAX)
    start = _last(lines[:error], _FRAME)
    if error is None or start is None or _end_of_indented(lines, start) != error:
        return None
    return Words(
        heading="its traceback",
        lines=tuple(lines[start : error + 1]),
        errors=(lines[error],),
        frame=_place(lines[start]),
    )


def _accounted(account: str) -> Words | None:
    lines = _lines(account)
    if not lines:
        return None
    trace = find_trace(lines) or Words(heading="", errors=(lines[0],))
    return replace(trace, heading="from its error file", lines=tuple(lines))


def _place(frame: str) -> str:
    found = _FRAME.match(frame)
    return f"{found[1]}:{found[2]}" if found else ""


def _last(lines: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    found = (n for n in reversed(range(len(lines))) if pattern.match(lines[n]))
    return next(found, None)
