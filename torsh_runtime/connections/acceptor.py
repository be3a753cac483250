"""Conversations with unauthenticated peers ("strangers") within an event loop, which take a limited
part of its time."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable

from torsh_runtime.connections.multiplexer import Answer, ConnectionMultiplexer, Outcome, is_lack

_AT_ONCE = 8
"""Number of strangers that are served before the loop turns to its other work."""
_SHARE = 0.5
"""Fraction of a CPU that strangers may use of this process in the long run."""
_SAVED = 4.0
"""Seconds for which an unused share is saved up while no stranger connects."""
_PAUSE = 0.1
"""Seconds until the next attempt to accept when the process has no free descriptor."""


class CpuBudget:
    """Limits the work that others cause to a share of a CPU, and saves up what is not used.

    `share` is a fraction of a CPU, `saved` the seconds for which it is saved up at most.
    """

    def __init__(self, share: float = _SHARE, saved: float = _SAVED) -> None:
        self._share = share
        self._saved = saved
        self._spent_until = -math.inf

    def pause(self, spent: float, now: float) -> float:
        """Return the seconds to pause after `spent` seconds of work that ended at `now`."""
        self._spent_until = max(self._spent_until, now - self._saved) + spent / self._share
        return max(self._spent_until - now, 0.0)


_budget = CpuBudget()
"""Budget that all acceptors of this process share."""


class Acceptor:
    """Holds a conversation with each peer that connects to the listening socket.

    Calls `ended` with the outcome of each. Use it within an event loop, and close it; it owns the
    socket and the conversations.

    In each of its turns the loop serves only a few strangers, and all of them together use at most
    a share of a CPU. However many connect, the loop's other work is done in time, and the
    strangers wait in the socket's queue.
    """

    def __init__(
        self,
        listener: socket.socket,
        conversations: ConnectionMultiplexer,
        answer: Answer,
        ended: Callable[[Outcome], None],
        stuck: Callable[[str], None],
    ) -> None:
        """Begin to accept connections, and hold the conversation answer(sock) with each.

        `stuck` is called with the reason when no peer can connect for the moment.
        """
        self._listener = listener
        self._conversations = conversations
        self._ended = ended
        self._stuck = stuck
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_hearing = False
        conversations.listen(listener, answer)
        self._hear_after(0.0)

    def close(self) -> None:
        """Stop listening and end all conversations. A second call does nothing."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._conversations)
            if self._timer:
                self._timer.cancel()
            self._conversations.close()
            self._listener.close()

    def _turn(self) -> None:
        began, pause = time.thread_time(), 0.0
        try:
            for outcome in self._conversations.turn(0.0, _AT_ONCE):
                self._ended(outcome)
        except OSError as error:
            if not is_lack(error):
                raise
            self._stuck(f"nobody can connect now: {error.strerror}")
            pause = _PAUSE
        spent = time.thread_time() - began
        self._hear_after(max(pause, _budget.pause(spent, time.monotonic())))

    def _hear_after(self, pause: float) -> None:
        if self._is_hearing and pause:
            self._loop.remove_reader(self._conversations)
        elif not self._is_hearing and not pause:
            self._loop.add_reader(self._conversations, self._turn)
        self._is_hearing = not pause
        self._wake_at(time.monotonic() + pause if pause else self._conversations.next_deadline)

    def _wake_at(self, moment: float) -> None:
        """Take another turn at `moment` at the latest, even if no socket is ready."""
        if self._timer and self._timer.when() > moment:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and moment < math.inf:
            self._timer = self._loop.call_at(moment, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._turn()
