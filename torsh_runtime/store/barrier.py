"""A barrier over a store, which can be passed again and again."""

from __future__ import annotations

import time

from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.base import Compare, Delete, Put, Write
from torsh_runtime.store.client import StoreClient

_STATE = "state"
"""The key of "<turn> <how many have come in it>"; when all have, "passed/<turn>" is written too."""
_BACK_SECONDS = 5.0


class StoreBarrier:
    """One key's, for so many callers at a time."""

    def __init__(self, scope: StoreClient, callers: int) -> None:
        """`scope`: what is this barrier's alone. ValueError unless callers is 1 or more."""
        if callers < 1:
            raise ValueError(f"a barrier is for 1 caller or more, not {callers}")
        self._scope = scope
        self._callers = callers

    def pass_it(self, seconds: float) -> None:
        """Return when all have come. StoreTimeout if they do not: then this one has not either."""
        deadline = time.monotonic() + seconds
        turn = self._change(1, deadline)
        try:
            self._scope.wait([f"passed/{turn}"], max(deadline - time.monotonic(), 0.0))
        except StoreTimeout:
            if self._change(-1, time.monotonic() + _BACK_SECONDS, turn) == turn:
                raise

    def _change(self, step: int, deadline: float, only: int | None = None) -> int:
        """Count one more, or one less if the turn is `only`; which turn it is."""
        while True:
            entry = self._scope.get(_STATE)
            turn, came = map(int, entry.value.split()) if entry else (0, 0)
            if only not in (None, turn):
                return turn
            compare = Compare(_STATE, entry.revision if entry else 0)
            if self._scope.transact([compare], self._writes(turn, came + step)).succeeded:
                return turn
            if time.monotonic() > deadline:
                raise StoreTimeout("others have come to the barrier or left it all along")

    def _writes(self, turn: int, came: int) -> list[Write]:
        if came < self._callers:
            return [Put(_STATE, b"%d %d" % (turn, came))]
        over = [Delete(f"passed/{turn - 2}")] if turn > 1 else []
        return [Put(_STATE, b"%d 0" % (turn + 1)), Put(f"passed/{turn}", b""), *over]
