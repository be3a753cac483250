"""Stops all ranks after the same step once any rank gets a notice that the job must stop.

The callbacks for other libraries' trainers use this.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import StoreError
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.user import Store

MADE_ROOM = 75
"""The exit code of a worker that has saved its state because of a notice."""
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""The signals of torshrun: stop now, within the grace period; and an earlier warning."""
_PATIENCE = 10.0
"""Seconds that the agent's store may take to answer."""
_KEY = "stop_at"
"""The key of the agreed step, which holds the training's number in the job and the step."""


class Notices:
    """Handles the signals in a worker of torshrun while it is in use."""

    def __init__(self) -> None:
        self._heard = False
        self._store: Store | None = None
        self._training = 0
        self._handlers: dict[signal.Signals, Any] = {}

    @classmethod
    def begun(cls) -> Self:
        """Start handling the signals, and return the object that does.

        In a process that torshrun did not start, and in any thread but the main one, which alone
        can handle signals, no notices are received.
        """
        notices = cls()
        is_worker = os.environ.get("TORSH_STORE_ENDPOINT")
        if is_worker and threading.current_thread() is threading.main_thread():
            notices._store = _store()
            notices._training = notices._store.add(f"trainings/{os.environ['RANK']}", 1)
            for each in _SIGNALS:
                notices._handlers[each] = signal.signal(each, notices._hear)
        return notices

    def end(self) -> None:
        """Restore the earlier handlers of the signals."""
        for each, handler in self._handlers.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()

    def stop_after(self, step: int) -> bool:
        """Return whether all ranks stop after `step`, which this rank has completed.

        Every rank calls this after each step, in which all ranks have communicated. A rank that has
        received a notice proposes the next step. No rank can complete that step before the proposal
        is stored, as the step needs the proposer, too. If `step` was the last one, all ranks stop
        after the first step of the next training, if the job has one.
        """
        if self._store is None:
            return False
        try:
            if self._heard:
                proposed = f"{self._training} {step + 1}"
                agreed = self._store.compare_set(_KEY, "", proposed)
            elif self._store.check([_KEY]):
                agreed = self._store.get(_KEY)
            else:
                return False
            training, last = map(int, agreed.split())
            return (self._training, step) >= (training, last)
        except StoreError:  # the agent is ending, and so is this worker
            return False

    def _hear(self, signo: int, frame: FrameType | None) -> None:
        self._heard = True


def _store() -> Store:
    env = WorkerEnv.from_environ(os.environ)
    secret = bytes.fromhex(env.secret)
    client = StoreClient.connect(env.store_endpoint, secret, _PATIENCE, _PATIENCE)
    return Store(client.scoped("notices/"), _PATIENCE)
