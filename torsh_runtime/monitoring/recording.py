"""A worker's own recording: where its groups note their operations."""

from __future__ import annotations

import mmap
import os
import struct
from functools import cache
from pathlib import Path

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.layout import (
    HEADER_BYTES,
    MAGIC,
    RECORDING_BYTES,
    STRIDE,
    VERSION,
    file_beside,
    words_of,
)
from torsh_runtime.monitoring.notes import Notebook
from torsh_runtime.status import own_page

VARIABLE = "TORSH_RECORDER"


class Recording:
    """The memory of a recording, and the number of its tallies that are taken."""

    def __init__(self, memory: memoryview) -> None:
        """Use `memory`, which has RECORDING_BYTES, all zero, and must outlive this object."""
        self.memory = memory
        self.is_open = False
        """True once the compiled library has begun to write to it."""
        self.notebook = Notebook(memory)
        self._groups = 0

    def next_place(self) -> int:
        """Return the place for one more group of this process."""
        self._groups += 1
        return self._groups - 1

    def words(self) -> memoryview:
        """Return a copy of the present content."""
        return words_of(self.memory)


@cache
def own_recording() -> Recording | None:
    """Return this process's recording, in its agent's file, or in memory of its own without an
    agent. None if TORSH_RECORDER is off. Raises ConfigError for values other than on and off."""
    value = os.environ.get(VARIABLE, "on")
    if value not in ("on", "off"):
        raise ConfigError(f"{VARIABLE}={value} must be on or off")
    if value == "off":
        return None
    return Recording(_in_file() or memoryview(mmap.mmap(-1, RECORDING_BYTES)))


# The groups of a forked child are its parent's.
os.register_at_fork(after_in_child=own_recording.cache_clear)


def _in_file() -> memoryview | None:
    """Return the recording's part of the agent's file. None if the agent has made no file, or
    another process of this worker has the page."""
    try:
        env = WorkerEnv.from_environ(os.environ)
    except ConfigError:
        return None
    if not env.status_file or own_page() is None:
        return None
    try:
        with Path(file_beside(env.status_file)).open("r+b", buffering=0) as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0))
    except (OSError, ValueError):  # it is missing or empty
        return None
    magic, version, count = struct.unpack("=3Q", memory[:24]) if len(memory) >= 24 else (0, 0, 0)
    begin = HEADER_BYTES + env.local_rank * STRIDE
    is_ours = (magic, version) == (MAGIC, VERSION) and 0 <= env.local_rank < count
    if not is_ours or len(memory) < begin + STRIDE:
        return None
    own = memory[begin : begin + RECORDING_BYTES]
    own[:] = bytes(RECORDING_BYTES)  # another program of the same worker may have had it
    return own
