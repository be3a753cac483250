"""Operations that are described once and begun again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.messages import irecv, isend, recv, send


class Persistent(Work):
    """An operation and its arrays. Made by persistent(); it is the Work of its last start()."""

    def __init__(self, begin: Callable[[], Work]) -> None:
        """`begin`: begins the operation."""
        self._begin = begin
        self._work: Work | None = None

    def start(self) -> Persistent:
        """Begin it, with what its arrays hold now; they are the operation's until it is done.

        RuntimeError while it is under way; raises besides what the operation's call raises.
        """
        if self._work is not None and not self._work.done():
            raise RuntimeError("the operation is still under way: wait() before starting it again")
        self._work = self._begin()
        return self

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        return self._started().wait(timeout)

    def done(self) -> bool:
        return self._started().done()

    def exception(self) -> BaseException | None:
        return self._started().exception()

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        self._started().add_done_callback(lambda _: callback(self))

    def result(self) -> list[object]:
        return self._started().result()

    @property
    def source(self) -> int | None:
        return self._started().source

    def _started(self) -> Work:
        if self._work is None:
            raise RuntimeError("the operation was not started: call start() first")
        return self._work


def persistent(operation: Callable[..., Any], *arguments: Any, **named: Any) -> Persistent:
    """One of this package's operations with its arguments, to be begun with start().

        exchange = [persistent(irecv, halo, left), persistent(isend, edge, right)]
        for step in range(steps):
            start_all(exchange)
            waitall(exchange)

    operation: isend, irecv or one that takes async_op, which is not given. ValueError for send and
    recv, which wait.
    """
    if operation in (send, recv):
        raise ValueError(f"{operation.__name__} waits for its end: give i{operation.__name__}")
    if operation not in (isend, irecv):
        named["async_op"] = True
    return Persistent(partial(operation, *arguments, **named))


def start_all(requests: Sequence[Persistent]) -> None:
    """start() each of them, in their order."""
    for request in requests:
        request.start()
