"""Finds tracebacks and stacks of crashes in the lines that a worker's Python wrote. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = "Traceback (most recent call last):"


_ORIGINAL = f"Original {HEADER}"  # within the message of an error that crossed processes


GROUP_HEADER = f"  + Exception Group {HEADER}"


_NESTED = re.compile(r"^[ |+]+(?:Exception Group )?Traceback ")


_GROUP_TITLE = re.compile(r"^  \| [^ ]")


_GROUP_END = re.compile(r"^ +\+-{36}$")


_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


_FRAME = re.compile(r'^[ |]*File "([^"]+)", line (\d+)')


_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")


ASIDE = re.compile(
    r"^(?:Exception ignored |Exception in (?:thread|callback) |Error in (?:atexit|sys)\b|"
    r"Process \S+:$|--- Logging error ---|future: <)"
)


NOISE = re.compile(
    r"^\[?[IWEF]\d{4} |^\[?(?:DEBUG|INFO|WARNING|ERROR)\b|^\S+:\d+: \w*Warning: |"
    r"^Fatal Python error: |^terminate called "
)


_FATAL = re.compile(r"^Fatal Python error: ")


_CRASHED_THREAD = re.compile(r"^(?:Current t|T)hread .*\(most recent call first\):")


_MESSAGE_LINES = 25


_MESSAGE_UNINDENTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The part of what a worker said that tells most about its end."""

    heading: str
    """A description of these words, for a reader; "" if there are none."""
    lines: tuple[str, ...] = ()
    """The lines, as a terminal shows them."""
    errors: tuple[str, ...] = ()
    """The exceptions in it with their messages, the last one raised last; () if it has none."""
    frame: str = ""
    """The innermost frame as "path:line"; "" is unknown."""
    complaints: tuple[str, ...] = ()
    """The plain lines that count for the cause, where those of stdout are among them."""
    innermost_first: bool = False
    """True if the lines that matter most are the first ones."""
    is_handled: bool = False
    """True if the worker may well have continued after them, so that they are not why it ended."""
    ends: tuple[int, ...] = ()
    """The numbers of lines after which each traceback of a chain of exceptions ends."""


def outside_traces(lines: Sequence[str]) -> list[str]:
    """Return the lines that are no part of tracebacks."""
    traced = traced_lines(lines)
    return [line for n, line in enumerate(lines) if n not in traced]


def traced_lines(lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines that are part of tracebacks."""
    found = set()
    is_inside = False
    for n, line in enumerate(lines):
        is_inside = is_inside or is_header(line)
        if is_inside:
            found.add(n)
            is_inside = is_header(line) or line.startswith(" ")  # not behind the exception
    return found


def find_trace(lines: Sequence[str]) -> Words | None:
    """Return the last whole traceback with its chain; a thread's only if there is no other."""
    found = [number for number, line in enumerate(lines) if is_header(line)]
    aside = None
    while found:
        block = _chain(lines, found)
        if block and not ASIDE.match(_line_before(lines, block[0][0])):
            return _trace(lines, block)
        aside = aside or block
    return _trace(lines, aside) if aside else _syntax_error(lines)


def before_trace(lines: Sequence[str]) -> list[str]:
    """Return the lines before the last traceback."""
    heads = [number for number, line in enumerate(lines) if is_header(line)]
    return [*lines[: heads[-1]]] if heads else []


def find_stack(lines: Sequence[str], num_before: int) -> Words | None:
    """Return what faulthandler writes of the thread with the error, and `num_before` lines before
    it; None if there is nothing.
    """
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
"""Line numbers: the start of a traceback, its exception, and the end of that one's message."""


def is_header(line: str) -> bool:
    if not line.endswith(HEADER) or line.endswith(_ORIGINAL):
        return False
    return line == GROUP_HEADER or not _NESTED.match(
        line
    )  # what may stand before it: a progress bar


def _chain(lines: Sequence[str], found: list[int]) -> list[_Block]:
    """Remove the headers of the last chain from `found`; return its blocks, [] if incomplete."""
    blocks: list[_Block] = []
    while found:
        start = found.pop()
        block = block_at(lines, start)
        if block is None:
            break
        blocks.insert(0, block)
        if _line_before(lines, start) not in _CHAINED:
            break
    return blocks


def block_at(lines: Sequence[str], start: int) -> _Block | None:
    if lines[start] == GROUP_HEADER:
        return _group(lines, start)
    error = _end_of_indented(lines, start + 1)
    complete = error > start + 1 and error < len(lines) and lines[error].strip()
    return (start, error, _end_of_message(lines, error)) if complete else None


def _group(lines: Sequence[str], start: int) -> _Block | None:
    end = next((n for n in range(start + 1, len(lines)) if lines[n] == GROUP_HEADER), len(lines))
    inside = range(start + 1, end)
    title = next((n for n in inside if _GROUP_TITLE.match(lines[n])), None)
    ends = (n + 1 for n in inside if _GROUP_END.match(lines[n]))
    over = next((n for n in ends if not "".join(lines[n : n + 1]).startswith("  ")), None)
    return (start, title, over) if title and over else None


def _end_of_indented(lines: Sequence[str], start: int) -> int:
    inside = (n for n in range(start, len(lines)) if not lines[n].startswith("  "))
    return next(inside, len(lines))


def _end_of_message(lines: Sequence[str], error: int) -> int:
    """Return where an exception's message and notes end: Python does not mark their end."""
    unindented = 0
    limit = min(len(lines), error + _MESSAGE_LINES)
    for number in range(error + 1, limit):
        line = lines[number]
        unindented += line[:1] not in " \t"
        over = unindented > _MESSAGE_UNINDENTED or is_header(line)
        if over or not line.strip() or ASIDE.match(line) or NOISE.match(line):
            return number
    return limit


def _line_before(lines: Sequence[str], start: int) -> str:
    before = (lines[n] for n in range(start - 1, -1, -1) if lines[n].strip())
    return next(before, "")


def _trace(lines: Sequence[str], blocks: Sequence[_Block]) -> Words:
    shown: list[str] = []
    ends: list[int] = []
    for start, _, end in blocks:
        chained = _line_before(lines, start)
        shown += ["", chained, ""] if shown else [chained] if ASIDE.match(chained) else []
        shown += [GROUP_HEADER if lines[start] == GROUP_HEADER else HEADER, *lines[start + 1 : end]]
        ends.append(len(shown))
    start, error, _ = blocks[-1]
    frames = [line for line in lines[start:error] if _FRAME.match(line)]
    return Words(
        heading="its traceback",
        lines=tuple(shown),
        errors=tuple(error_at(lines, block) for block in blocks),
        frame=_place(frames[-1]) if frames else "",
        ends=tuple(ends),
    )


def error_at(lines: Sequence[str], block: _Block) -> str:
    start, error, end = block
    if lines[start] == GROUP_HEADER:
        return lines[error].removeprefix("  | ")
    return "\n".join(lines[error:end])


def _syntax_error(lines: Sequence[str]) -> Words | None:
    """Return the words of a script that cannot be parsed: it has no traceback, but a place."""
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


def _place(frame: str) -> str:
    found = _FRAME.match(frame)
    return f"{found[1]}:{found[2]}" if found else ""


def _last(lines: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    found = (n for n in reversed(range(len(lines))) if pattern.match(lines[n]))
    return next(found, None)
