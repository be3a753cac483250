"""A notice that the job is to stop, heard by any rank, and followed by all at the same step: what
the callbacks for other libraries' trainers are made of."""

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
"""torshrun's: stop now, within the grace; and some time before that."""
_PATIENCE = 10.0
"""Seconds that the agent's store may take to answer."""
_KEY = "stop_at"
"""The training, as the job's first, second and so on, and the step that were agreed on."""


class Notices:
    """Handles the signals, in the worker of a torshrun, while it is in use."""

    def __init__(self) -> None:
        self._heard = False
        self._store: Store | None = None
        self._training = 0
        self._handlers: dict[signal.Signals, Any] = {}

    @classmethod
    def begun(cls) -> Self:
        """From now on. In a process that no torshrun has started, and beside the main thread,
        which alone hears signals, nothing is heard."""
        notices = cls()
        is_worker = os.environ.get("TORSH_STORE_ENDPOINT")
        if is_worker and threading.current_thread() is threading.main_thread():
            notices._store = _store()
            notices._training = notices._store.add(f"trainings/{os.environ['RANK']}", 1)
            for each in _SIGNALS:
                notices._handlers[each] = signal.signal(each, notices._hear)
        return notices

    def end(self) -> None:
        """Let others handle the signals as before."""
        for each, handler in self._handlers.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()

    def stop_after(self, step: int) -> bool:
        """Whether all ranks stop behind this step, which this one has done. Every rank asks behind
        each step, in which all ranks have met.

        Who has heard a notice proposes the next step. No rank can be done with that one before the
        proposal stands: it takes the proposer to do it. Where this step was the last one, all stop
        behind the first step of the next training, if the job has one.
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
        except StoreError:  # the agent goes, and so does this worker
            return False

    def _hear(self, signo: int, frame: FrameType | None) -> None:
        self._heard = True


def _store() -> Store:
    env = WorkerEnv.from_environ(os.environ)
    secret = bytes.fromhex(env.secret)
    client = StoreClient.connect(env.store_endpoint, secret, _PATIENCE, _PATIENCE)
    return Store(client.scoped("notices/"), _PATIENCE)
