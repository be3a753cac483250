"""Conversations with strangers within an event loop, which never take much of its time."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable

from torsh_runtime.connections.multiplexer import Answer, ConnectionMultiplexer, Outcome, is_lack

_AT_ONCE = 8
"""Strangers that are listened to before the loop turns to its other work."""
_SHARE = 0.5
"""Of one CPU, which strangers may cost this process for long,"""
_SAVED = 4.0
"""and the seconds for which it is saved up while nobody comes."""
_PAUSE = 0.1
"""Seconds until the next attempt when the process has no descriptor left."""


class CpuBudget:
    """A share of one CPU for work that others cause. What is not spent is saved up for a while."""

    def __init__(self, share: float = _SHARE, saved: float = _SAVED) -> None:
        self._share = share
        self._saved = saved
        self._spent_until = -math.inf

    def pause(self, spent: float, now: float) -> float:
        """How long to pause after so many seconds of work."""
        self._spent_until = max(self._spent_until, now - self._saved) + spent / self._share
        return max(self._spent_until - now, 0.0)


_budget = CpuBudget()
"""It is shared by all acceptors of this process."""


class Acceptor:
    """Holds a conversation with each that connects to the listening socket, and tells how it
    `ended`. Use it within an event loop, and close it; the socket and the conversations are its
    own.

    In each of its turns the loop hears a few strangers at most, and all of them together take a
    share of a CPU at most: however many come, others are served in time, and they wait in the
    socket's queue.
    """

    def __init__(
        self,
        listener: socket.socket,
        conversations: ConnectionMultiplexer,
        answer: Answer,
        ended: Callable[[Outcome], None],
        stuck: Callable[[str], None],
    ) -> None:
        """`stuck` is told why nobody can connect for the moment."""
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
        """Listen no more, and end all conversations. A second time does nothing."""
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
        """Take another turn then at the latest, though nobody says anything."""
        if self._timer and self._timer.when() > moment:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and moment < math.inf:
            self._timer = self._loop.call_at(moment, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._turn()
