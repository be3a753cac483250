"""Reads the files that a worker left when it ended."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from torshrun.procfs import read_text
from torshrun.safe_files import Folder
from torshrun.workers.worker import Worker

if TYPE_CHECKING:  # at the start it would take time
    from torshrun.failure.ending import Ending


KEPT_BYTES = 1 << 20
"""Bytes of a worker's error file that are kept at most."""


STACK_BYTES = 1 << 16
"""Bytes that are read at most of the stack that a worker left when it was stopped."""


def left_stack(ending: Worker) -> str:
    """Return where the worker was when it was asked to stop, as its Python wrote it."""
    if not ending.stopped:
        return ""
    if ending.status & 0x7F == signal.SIGABRT:  # as workers that hang may be ended
        return (ending.streams[-1].tail or b"").decode(errors="replace")
    path = ending.assignment.worker.stack_file
    return read_text(path, STACK_BYTES) if path else ""


def noted_ending(ending: Worker) -> Ending:
    """Return how its Python ended, as its start hook noted it."""
    from torshrun.failure.ending import ENDING_BYTES, NO_ENDING, SUFFIX, parse

    path = ending.assignment.worker.stack_file
    if not path or not os.path.lexists(path):
        return NO_ENDING
    return parse(read_text(path + SUFFIX, ENDING_BYTES))


def keep_error(path: str, folder: Folder, kept: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as left, os.fdopen(folder.open_for_append(kept), "wb") as file:
        if not os.fstat(file.fileno()).st_size:  # it may have been kept before
            file.write(left.read(KEPT_BYTES))
