"""A pipe at which processes that were forked later wait for each other."""

from __future__ import annotations

import os
import select
import time
from types import TracebackType
from typing import Self


class Gate:
    """Whoever waits goes through when it has been opened for one more."""

    def __init__(self) -> None:
        self._in, self._out = os.pipe()
        os.set_blocking(self._in, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._in)
        os.close(self._out)

    def open(self, count: int = 1) -> None:
        """For so many."""
        os.write(self._out, b"x" * count)

    def wait(self, count: int, seconds: float) -> bool:
        """Whether it was opened so many times within so many seconds."""
        deadline = time.monotonic() + seconds
        while count:
            if not select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0]:
                return False
            try:
                count -= len(os.read(self._in, count))
            except BlockingIOError:
                continue  # another one was faster
        return True
