"""Waiting for one of several operations, or for all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle

from torsh_runtime.backends.work import Work, in_seconds
from torsh_runtime.comm.timeouts import Timeout
from torsh_runtime.errors import CommError, CommTimeout

_TURN = 0.001
"""Seconds that one of several is waited for before the others are looked at again."""


def waitall(works: Sequence[Work | None], timeout: Timeout = None) -> None:
    """Wait until all are complete; None among them stands for nothing.

    Raises the CommError of the first, in their order, that ended with one, or CommTimeout after
    `timeout`, in seconds or a timedelta (None: as long as the operations' own timeouts let them
    run): what is not complete is under way then.
    """
    end = _end(timeout)
    for work in works:
        if work is not None:
            work.wait(None if end is None else max(end - time.monotonic(), 0.0))


def waitany(works: Sequence[Work | None], timeout: Timeout = None) -> int:
    """Wait until one is complete; its index. None among them stands for nothing, so that those that
    were dealt with can be crossed out.

    Raises the CommError that it ended with, CommTimeout as waitall, and ValueError if there is
    nothing to wait for.
    """
    left = [(index, work) for index, work in enumerate(works) if work is not None]
    if not left:
        raise ValueError("there is nothing to wait for: no Work among the works")
    end = _end(timeout)
    for _, waited_for in cycle(left):
        for index, work in left:
            if work.done():
                work.wait()
                return index
        if end is not None and time.monotonic() > end:
            raise CommTimeout("waitany", 0, in_seconds(timeout) or 0.0, (), _GOES_ON)
        _wait_a_turn(waited_for)
    raise AssertionError("there is always another turn")


_GOES_ON = "; the operations are still under way, wait again"


def _wait_a_turn(work: Work) -> None:
    with suppress(CommError):  # this turn's timeout, or its own end, which the next look shows
        work.wait(_TURN)


def _end(timeout: Timeout) -> float | None:
    seconds = in_seconds(timeout)
    return None if seconds is None else time.monotonic() + seconds
