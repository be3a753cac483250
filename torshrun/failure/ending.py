"""Reads how a worker's Python ended, from lines of JSON that its start hook noted. Pure.

{"how": "exception" | "exit" | "shown" | "left" | "asked", "own", "at", "trace", "errors", "frame",
"code", "places", "port",
"holder", "held"}; torshrun/workers/startup/torsh_end.py writes them. Workers write what
they like, so everything is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torshrun.text import printable_lines

SUFFIX = "_end"
"""The suffix of the notes' file, after the path of the stack file."""
ENDING_BYTES = 1 << 20
"""The most bytes that are read of these notes."""
MOST_LINES = 64
MOST_PLACES = 16
MOST_ERRORS = 16

By = Literal["", "exception", "exit", "left"]
_HOW: Mapping[str, By] = {
    "exception": "exception",
    "exit": "exit",
    "shown": "exit",
    "left": "left",
    "asked": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Holds how a worker's Python ended, as far as its start hook could note it."""

    is_watched: bool = False
    """True if the hook was active in a Python process of this worker."""
    by: By = ""
    """exception: an uncaught one. exit: in order, at its script's end or by SystemExit. left: by
    os._exit(), while it handled an exception. "": nothing is known, as compiled code, a signal,
    another program that takes its place, and mostly os._exit() leave nothing.
    """
    is_own: bool = False
    """True if that Python was the worker itself, and no process that it had started."""
    at: float = 0.0
    """Seconds of the node's monotonic clock when the exception was noted; 0 is unknown."""
    trace: str = ""
    """The traceback of the exception, with its chain; "" is none. If `was_shown` it is the one that
    the program wrote somewhere just before it ended in order, else of "exit" and "left" it is the
    one that was being handled when sys.exit() or os._exit() was called.
    """
    errors: tuple[str, ...] = ()
    """The exceptions of that chain with their messages, the last one raised last."""
    frame: str = ""
    """The innermost frame of the last one as "path:line"; "" is unknown."""
    was_shown: bool = False
    """True if that exception had been handled, and written somewhere, before the end."""
    port: int = 0
    """The port that was in use, if that is what the exception is about; 0 is unknown."""
    holder: int = 0
    """The process that held the lock of a file, if the exception is about a lock; 0 is unknown."""
    held: str = ""
    """The file that is locked; "" is unknown."""
    code: int = 0
    """The exit code that the exception gives."""
    places: tuple[tuple[str, int], ...] = ()
    """Places where exceptions were handled, as (path, line), the first one's place first, if
    `trace` is of an exception in flight when the worker was asked to stop.
    """

    @property
    def in_flight(self) -> bool:
        """Return whether the exception was still in flight when the worker was asked to stop."""
        return bool(self.trace) and not self.by

    @property
    def is_chosen(self) -> bool:
        """Return whether the script chose to end because of an exception that it handled."""
        return bool(self.trace) and self.by in ("exit", "left") and not self.was_shown


NO_ENDING = Ending()


def parse(text: str) -> Ending:
    """Return what these lines say, of which the one about the end counts. If there are none, the
    hook was active, and Python did not end in its own way.
    """
    ending = Ending(is_watched=True)
    for line in text.split("\n")[:MOST_LINES]:
        ending = _with_line(ending, line)
    return ending


def _with_line(ending: Ending, line: str) -> Ending:
    try:
        facts = json.loads(line or "null")
    except (ValueError, RecursionError):
        return ending
    if not isinstance(facts, dict) or ending.by == "exception":
        return ending
    how, is_own = facts.get("how"), facts.get("own") is True
    trace = facts.get("trace")
    if how == "exit" and not isinstance(trace, str):
        return Ending(is_watched=is_own, by="exit", is_own=is_own)
    if not isinstance(how, str) or how not in _HOW or not isinstance(trace, str):
        return ending
    return replace(
        ending,
        is_watched=is_own or _HOW[how] != "exit",
        was_shown=how == "shown",
        by=_HOW[how],
        is_own=is_own,
        at=_number(facts.get("at")),
        trace=trace,
        errors=tuple(_texts(facts.get("errors"))),
        frame=next(iter(_texts([facts.get("frame")])), ""),
        port=int(_number(facts.get("port"))) & 0xFFFF,
        holder=int(_number(facts.get("holder"))),
        held=next(iter(_texts([facts.get("held")])), ""),
        code=int(_number(facts.get("code"))) & 0xFF,
        places=tuple(_places(facts)),
    )


def _places(facts: Mapping[str, Any]) -> list[tuple[str, int]]:
    found = facts.get("places")
    pairs = found[:MOST_PLACES] if isinstance(found, list) else []
    return [
        (each[0], each[1])
        for each in pairs
        if isinstance(each, list)
        and len(each) == 2
        and isinstance(each[0], str)
        and type(each[1]) is int
        and 0 < each[1] < 1 << 24
    ]


def _texts(value: object) -> list[str]:
    found = value[-MOST_ERRORS:] if isinstance(value, list) else []
    return ["\n".join(printable_lines(each)) for each in found if isinstance(each, str)]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0.0
