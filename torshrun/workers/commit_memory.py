"""Memory in which workers leave what they have come to, for those that follow them."""

from __future__ import annotations

import os

DESCRIPTOR = 3
"""What workers know it by."""
ROOM = 1 << 40
"""Bytes for each, of addresses, not of memory."""


class CommitMemory:
    """A file without a name, of which this process keeps the descriptor: it takes memory only where
    workers have written, and is gone with the last process that has it open."""

    def __init__(self, workers: int) -> None:
        self._descriptor = os.memfd_create("torsh-commits", os.MFD_CLOEXEC)
        self._is_there = True
        try:
            os.ftruncate(self._descriptor, workers * ROOM)
        except OSError:  # a limit on the size of files
            self._is_there = False

    def fileno(self) -> int:
        """To be passed on."""
        return self._descriptor

    def told(self) -> str:
        """What workers are told, so that they do not take something else for it; "" if there is
        no room for them."""
        if not self._is_there:
            return ""
        status = os.fstat(self._descriptor)
        return f"{DESCRIPTOR}:{status.st_dev}:{status.st_ino}"

    def close(self) -> None:
        """Give it back when there are no workers any more."""
        os.close(self._descriptor)
