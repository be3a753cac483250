"""Memory in which workers leave what they have come to, for those that follow them."""

from __future__ import annotations

import fcntl
import os

INHERITED = 3
"""The descriptor by which workers in a PID namespace know it, for they see another /proc."""
ROOM = 1 << 42
"""Bytes for each, of addresses, not of memory."""


class CommitMemory:
    """Provides a file without a name, of which this process keeps the descriptor.

    The file takes memory only where workers have written, has a size that nobody can change, and
    vanishes with the last process that has it open. Workers open it through this process's
    descriptor.
    """

    def __init__(self, workers: int, namespace: bool = False) -> None:
        """Create the memory.

        `namespace` says whether the workers are in a PID namespace of their own.
        """
        self._descriptor = os.memfd_create("torsh-commits", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._namespace = namespace
        self._is_there = True
        try:
            os.ftruncate(self._descriptor, workers * ROOM)
        except OSError:  # a limit on the size of files
            self._is_there = False
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)

    def inherited(self) -> tuple[int, ...]:
        """Return the descriptors to pass on to workers after their standard streams."""
        return (self._descriptor,) if self._namespace else ()

    def told(self) -> str:
        """Return "path:device:inode", by which workers open this memory and take no other file for
        it.

        Return "" if there is no room for their commits.
        """
        if not self._is_there:
            return ""
        status = os.fstat(self._descriptor)
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        if self._namespace:
            path = f"/proc/self/fd/{INHERITED}"
        return f"{path}:{status.st_dev}:{status.st_ino}"

    def close(self) -> None:
        """Give it back when there are no workers any more."""
        os.close(self._descriptor)
