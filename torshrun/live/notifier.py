"""Notifier: runs a command for each notification, without ever waiting for it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue

from torsh_runtime.events import Event
from torshrun.signals import signal_name

RUN_SECONDS = 10.0
"""Seconds that the command may run before it is killed."""
WAITING = 16
"""The most notifications that wait while it runs."""
CLOSE_SECONDS = 2.0
"""Seconds that the end of the job waits for them."""


class Notifier:
    """Runs the command in a thread of its own, one notification after the other.

    `complain` gets a line if there are too many, and about the first failure, from either thread.
    """

    def __init__(self, command: str, complain: Callable[[str], None]) -> None:
        """Start the thread. `command` is for /bin/sh."""
        self._command = command
        self._complain = complain
        self._complained = self._is_over = False
        self._events: Queue[Event | None] = Queue(WAITING)
        self._running: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="torsh-notify", daemon=True)
        self._thread.start()

    def notify(self, event: Event) -> None:
        """Run the command with this event as a line of JSON at its standard input."""
        try:
            self._events.put_nowait(event)
        except Full:
            self._complain_once("it takes too long: notifications are left out")

    def close(self) -> None:
        """Wait for its end for CLOSE_SECONDS; then it is killed, and what waits is left out."""
        with suppress(Full):
            self._events.put_nowait(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._is_over = True
            self._kill()
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        for event in iter(self._events.get, None):
            if self._is_over:
                return
            try:
                self._notify(event)
            except OSError as error:
                self._complain_once(f"it cannot be run: {error.strerror}")

    def _notify(self, event: Event) -> None:
        # In a session of its own: signals of a terminal are for the job, and all it starts can go.
        self._running = subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._is_over:  # since close() killed what ran before
            self._kill()
        try:
            self._running.communicate(event.to_json(), RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            with suppress(subprocess.TimeoutExpired):
                self._running.wait(CLOSE_SECONDS)  # else it stays a zombie
            self._complain_once(f"it has not ended within {RUN_SECONDS:g} s, and was killed")
        if self._running.returncode and not self._is_over:
            code = self._running.returncode
            how = f"ended with code {code}" if code > 0 else f"been killed by {signal_name(-code)}"
            self._complain_once(f"it has {how}")

    def _kill(self) -> None:
        if self._running and self._running.returncode is None:
            with suppress(OSError):
                os.killpg(self._running.pid, signal.SIGKILL)

    def _complain_once(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            self._complain(f"--notify {self._command}: {why}")
