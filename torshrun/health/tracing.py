"""A trace that torshctl asks an agent for: for how long, or of which steps."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping

from torsh_runtime.monitoring.layout import file_beside
from torshrun.health.collecting import MOST_BYTES, Steps, collect_for

LONGEST = 600.0
"""Seconds that a trace may take."""


class InvalidTrace(Exception):
    """Raised if a trace cannot be had; the message says why."""


def argument_of(seconds: float, steps: Steps | None) -> str:
    """Return the request for a trace, as text."""
    return json.dumps({"seconds": seconds, "steps": steps})


def trace_asked(
    status_file: str,
    argument: str,
    most: int,
    about: Mapping[str, object],
    is_wanted: Callable[[], bool],
) -> bytes:
    """Return the requested trace, compressed by zlib, of at most `most` bytes.

    Raises InvalidTrace if it cannot be had.
    """
    try:
        told = json.loads(argument)
        seconds = float(told["seconds"])
        steps = Steps(*map(int, told["steps"])) if told["steps"] is not None else None
    except (ValueError, TypeError, KeyError):
        raise InvalidTrace("this agent does not understand which trace is asked for") from None
    if not 0 < seconds <= LONGEST:
        raise InvalidTrace(f"a trace of {seconds:g} s cannot be had: {LONGEST:g} s at most")
    try:
        path, room = file_beside(status_file), min(most * 9 // 10, MOST_BYTES)
        return zlib.compress(collect_for(path, seconds, about, is_wanted, steps, room), 0)
    except OSError as error:
        raise InvalidTrace(f"nothing is recorded there: {error.strerror or error}") from None
    except LookupError as error:
        raise InvalidTrace(str(error)) from None
