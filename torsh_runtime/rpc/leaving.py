"""Lets workers leave together, once none of them has a call to another that is not answered.

The worker with the lowest id that is alive keeps the list: the others report to it, and it answers
when all have come or are gone. It holds a connection to each, so it hears of a death at once. When
it dies itself, the next one starts the list anew.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from torsh_runtime.backends.future import Future
from torsh_runtime.errors import PeerLost, TorshError
from torsh_runtime.rpc.current import current_agent
from torsh_runtime.rpc.failures import CallTimeout
from torsh_runtime.rpc.functions import async_execution

if TYPE_CHECKING:
    from torsh_runtime.rpc.agent import Agent

_PAUSE = 0.002
_FAREWELL = 1.0
"""Seconds for the last answers, when all have come."""
_REMINDER = 60.0
"""Seconds between warnings that name the missing workers."""
_log = logging.getLogger("torsh_runtime")


class Roll:
    """The workers that have come to the end, and those that are missing."""

    def __init__(self, expected: set[int]) -> None:
        self._lock = threading.Lock()
        self._missing = set(expected)
        self._here: list[Future] = []
        self.all_here = Future()

    def come(self, worker: int) -> Future:
        """Note that the worker is here or will not come. Return a future that is complete when
        nobody is missing."""
        here = Future()
        with self._lock:
            self._missing.discard(worker)
            self._here.append(here)
            told = [] if self._missing else self._here
            self._here = [] if told else self._here
        for each in told:
            each.set_result(None)
        if told and not self.all_here.done():
            self.all_here.set_result(None)  # after they have been answered
        return here

    @property
    def missing(self) -> list[int]:
        with self._lock:
            return sorted(self._missing)


def leave(agent: Agent, seconds: float) -> None:
    """Wait for the calls of this worker, and for the other workers if they are fixed. Raises
    CallTimeout after `seconds`, naming what is left."""
    deadline = time.monotonic() + seconds
    while agent.num_pending:
        if time.monotonic() >= deadline:
            detail = f": {agent.num_pending} calls of this worker are not answered"
            raise CallTimeout("shutdown", *agent.own.info, seconds, detail)
        time.sleep(_PAUSE)
    if agent.directory.world_size is not None:
        _together(agent, deadline, seconds)
        return
    _finish_serving(agent, deadline)


def _finish_serving(agent: Agent, deadline: float) -> None:
    while agent.num_serving and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _together(agent: Agent, deadline: float, seconds: float) -> None:
    own = agent.own.info
    gone: list[str] = []
    for worker in agent.directory.all():
        if worker.info == own:
            _keep_roll(agent, deadline, seconds, gone)
            break
        try:
            left = max(deadline - time.monotonic(), 0.001)
            agent.invoke(worker.info, arrive, (own.id,), {}, left).wait()
            break
        except PeerLost:
            gone.append(worker.text)
        except CallTimeout:
            detail = " to say that all workers have come to shutdown()"
            raise CallTimeout("shutdown", *worker.info, seconds, detail) from None
    if gone:
        _log.warning("shutdown(): not waited for, since it has ended: %s", ", ".join(gone))


def _keep_roll(agent: Agent, deadline: float, seconds: float, gone: list[str]) -> None:
    own, roll = agent.own.info, agent.roll
    for worker in agent.directory.all():
        if worker.info.id < own.id:
            roll.come(worker.info.id)  # it has died, or this worker would not keep the list
            continue
        try:
            is_gone = worker.info.id in agent.gone
            if not is_gone:
                agent.connected(worker.info, deadline)
        except PeerLost:
            is_gone = True
        except TorshError:
            continue
        if is_gone:
            gone.append(worker.text)
            roll.come(worker.info.id)
    roll.come(own.id)
    while not roll.all_here.done():
        with suppress(TimeoutError):
            roll.all_here.wait(max(min(deadline - time.monotonic(), _REMINDER), 0.0))
        if roll.all_here.done():
            _finish_serving(agent, min(deadline, time.monotonic() + _FAREWELL))
            return
        missing = [
            worker.text for worker in agent.directory.all() if worker.info.id in roll.missing
        ]
        if time.monotonic() >= deadline:
            detail = f": not come are {', '.join(missing)}"
            raise CallTimeout("shutdown", *own, seconds, detail)
        _log.warning("shutdown() waits for %s", ", ".join(missing))


@async_execution
def arrive(worker: int) -> Future:
    """Report that a worker has come; called on the worker that keeps the list."""
    return current_agent().roll.come(worker)
