"""Waits for one of several operations, or for all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle

from torsh_runtime.backends.work import Work, in_seconds
from torsh_runtime.comm.timeouts import Timeout
from torsh_runtime.errors import CommError, CommTimeout

_TURN = 0.001
"""Seconds to wait for one of several operations before looking at the others again."""


def waitall(works: Sequence[Work | None], timeout: Timeout = None) -> None:
    """Wait until all operations are complete.

    Args:
        works: The operations, in any order; None among them is skipped.
        timeout: Seconds or a timedelta; None waits as long as the operations' own timeouts let them
            run.

    Raises:
        CommError: If operations failed: the error of the first of these, in the order of `works`.
        CommTimeout: If `timeout` has passed. The operations that are not complete continue.

    Example:
        ```python
        works = [tr.all_reduce(array, async_op=True) for array in arrays]
        tr.waitall(works, timeout=60)
        ```
    """
    end = _end(timeout)
    for work in works:
        if work is not None:
            work.wait(None if end is None else max(end - time.monotonic(), 0.0))


def waitany(works: Sequence[Work | None], timeout: Timeout = None) -> int:
    """Wait until one of the operations is complete, and return its index.

    Args:
        works: The operations; None among them is skipped, so that those already handled can be
            replaced by it.
        timeout: Seconds or a timedelta; None waits as long as the operations' own timeouts let them
            run.

    Returns:
        The index in `works` of an operation that is complete.

    Raises:
        CommError: If the operation has failed.
        CommTimeout: If `timeout` has passed. The operations continue.
        ValueError: If `works` has no Work.

    Example:
        ```python
        works = [tr.irecv(array, rank) for rank, array in arrays.items()]
        while any(works):
            index = tr.waitany(works)
            works[index] = None
        ```
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
