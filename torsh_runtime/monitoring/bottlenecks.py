"""Reports what was found to a script that has a BottleneckDetectionConfig.

Under torshrun the agents look, and judge; here nothing runs. The agent writes what it has found to
a file beside its status pages, at which this process looks when it begins a step or a section. Any
other process has a thread that compares its steps with their own past.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.bottleneck_config import (
    Bottleneck,
    BottleneckDetectionConfig,
    Callback,
    call,
)
from torsh_runtime.monitoring.recording import own_recording
from torsh_runtime.monitoring.wishes import found_file

_MOST_BYTES = 1 << 20
_OFTEN = 0.1  # seconds between two looks at the file


def begin(config: BottleneckDetectionConfig) -> Callable[[], None]:
    """Begin the detection. Return a function that ends the calls of `callback`. Agents continue
    until their round ends. Raises ConfigError where nothing is recorded."""
    recording = own_recording()
    if recording is None:
        raise ConfigError(
            "BottleneckDetectionConfig needs what this process records, and TORSH_RECORDER is off"
        )
    try:
        env = WorkerEnv.from_environ(os.environ)
        status_file, rank = env.status_file, env.rank
    except ConfigError:
        status_file, rank = "", 0
    if not status_file:
        from torsh_runtime.monitoring.own_past import OwnPast

        return OwnPast(config, rank).stop
    recording.notebook.take_name(config.wish.named())
    if config.callback is None or not config.enable_notifications:
        return lambda: None
    return _observe(Findings(found_file(status_file), config.callback))


def _observe(findings: Findings) -> Callable[[], None]:
    from torsh_runtime.monitoring.marks import own_marks

    marks = own_marks()
    marks.observe(findings)
    return lambda: marks.observe(findings, ends=True)


class Findings:
    """Reads what the agent has found, whenever this process begins a step or a section."""

    def __init__(self, path: str, callback: Callback) -> None:
        self._path, self._callback = path, callback
        self._read = 0
        self._lock = threading.Lock()
        self._looked = -_OFTEN

    def begin(self, name: str, thread: int) -> None:
        self.look()

    def end(self, name: str, thread: int) -> None:
        """Do nothing at the end of a section."""

    def step(self, number: int) -> None:
        self.look()

    def look(self) -> None:
        """Call back with new findings, but not too often."""
        now = time.monotonic()
        if now - self._looked < _OFTEN or not self._lock.acquire(blocking=False):
            return
        try:
            self._looked = now
            for found in self._new():
                call(self._callback, found)
        finally:
            self._lock.release()

    def _new(self) -> Iterator[Bottleneck]:
        try:
            if os.stat(self._path).st_size <= self._read:  # noqa: PTH116  (pathlib costs more)
                return
            with open(self._path, "rb") as file:  # noqa: PTH123
                file.seek(self._read)
                content = file.read(_MOST_BYTES)
        except OSError:  # nothing was found yet
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # its writer is not known
                told = json.loads(line)
                yield Bottleneck(str(told["event"]), told["facts"], str(told["facts"]["text"]))
