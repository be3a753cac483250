"""A barrier over a store, which can be passed again and again."""

from __future__ import annotations

import time

from torsh_runtime.errors import StoreTimeout
from torsh_runtime.store.base import Compare, Delete, Put, Write
from torsh_runtime.store.client import StoreClient

_STATE = "state"
"""Key whose value is "<turn> <callers that have arrived in it>". When all have arrived,
"passed/<turn>" is written too."""
_BACK_SECONDS = 5.0


class StoreBarrier:
    """Holds `callers` callers back until all of them have arrived, any number of times in a row.

    Its state is in the store, so the callers may be in different processes.
    """

    def __init__(self, scope: StoreClient, callers: int) -> None:
        """Prepare the barrier; nothing is written yet. Raises ValueError unless callers >= 1.

        `scope` is a part of the store that only this barrier uses.
        """
        if callers < 1:
            raise ValueError(f"a barrier is for 1 caller or more, not {callers}")
        self._scope = scope
        self._callers = callers

    def pass_it(self, seconds: float) -> None:
        """Wait until all callers have arrived, for at most `seconds`.

        Raises StoreTimeout if they do not; this caller then no longer counts as arrived.
        """
        deadline = time.monotonic() + seconds
        turn = self._change(1, deadline)
        try:
            self._scope.wait([f"passed/{turn}"], max(deadline - time.monotonic(), 0.0))
        except StoreTimeout:
            if self._change(-1, time.monotonic() + _BACK_SECONDS, turn) == turn:
                raise

    def _change(self, step: int, deadline: float, only: int | None = None) -> int:
        """Add `step` to the number of arrived callers and return the turn.

        If `only` is given, and the current turn is a different one, change nothing. Raises
        StoreTimeout at the deadline, if other callers have changed the state at each attempt.
        """
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
