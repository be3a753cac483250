"""Parked copies of this process, of which the newest may take its place when it is killed."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import signal
import socket
import stat
import sys
import threading
import warnings
from contextlib import suppress

from torsh_runtime.recover.page import CopiesPage

PARENT_GONE = signal.SIGRTMAX - 3
"""The signal by which the kernel tells a copy that its parent has ended."""
_LOOK_AGAIN = 1.0
"""Seconds until a copy looks for its parent without a signal."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Copies:
    """Makes copies of this process. Only the newest is kept, and the page says which one it is."""

    def __init__(self, page: CopiesPage) -> None:
        self._page = page
        self._newest = 0

    @property
    def pid(self) -> int:
        """Return the pid of the newest copy; 0 if there is none."""
        return self._newest

    def make(self) -> bool:
        """Fork a copy, which waits. Return False here, and True in a copy whose parent was lost.

        Raises OSError if the system has no room for another process.
        """
        own = os.getpid()
        _flush()
        drawn, read = random.getstate(), _files_read()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # other threads need no copy
                pid = os.fork()
            if pid == 0:
                self._park(own)
                _go_back_in(read)
                random.setstate(drawn)  # Python draws another seed in a fork
                return True
            self._page.newest = pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        before, self._newest = self._newest, pid
        _end(before)
        return False

    def end(self) -> None:
        """End the newest copy: none takes this process's place any more."""
        self._page.newest = 0
        before, self._newest = self._newest, 0
        _end(before)

    def _park(self, parent: int) -> None:
        """Wait for the parent's end. Only the copy that may take its place returns."""
        _libc.prctl(_PR_SET_PDEATHSIG, int(PARENT_GONE), 0, 0, 0)
        if os.getsid(0) == parent:
            os.setsid()
        else:
            os.setpgid(0, 0)
        _let_go_of_connections()
        while os.getppid() == parent:
            signal.sigtimedwait([PARENT_GONE], _LOOK_AGAIN)
        signal.signal(PARENT_GONE, signal.SIG_IGN)  # it may be still to come
        if self._page.newest == parent:  # a copy itself, which was killed before it noted this one
            self._page.newest = os.getpid()
        if self._page.newest != os.getpid():
            os._exit(0)
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        self._newest = 0
        tell_native_id = getattr(threading.main_thread(), "_set_native_id", None)
        if tell_native_id is not None:  # a fork's is that of its parent
            tell_native_id()


def _let_go_of_connections() -> None:
    """Close what belongs to connections of the parent, whose peers must notice its end.

    What owned these descriptors may close them once more, so they stay taken.
    """
    one, dead = socket.socketpair()
    one.close()
    with dead:
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (descriptors)
            with suppress(OSError):
                if number > 2 and number != dead.fileno() and _is_connection(number):
                    os.dup2(dead.fileno(), number, inheritable=False)


def _is_connection(descriptor: int) -> bool:
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return True
    target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    return target.startswith(("anon_inode:", "/memfd:"))


def _files_read() -> dict[int, int]:
    """Return how far files have been read that are open for reading only, by descriptor."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (descriptors)
        with suppress(OSError):
            is_read = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if number > 2 and is_read and stat.S_ISREG(os.fstat(number).st_mode):
                found[number] = os.lseek(number, 0, os.SEEK_CUR)
    return found


def _go_back_in(files: dict[int, int]) -> None:
    """Read these files on from there, though the lost worker has read on: a fork shares its place.

    Raises OSError if one of them cannot be opened any more.
    """
    for number, place in files.items():
        flags = fcntl.fcntl(number, fcntl.F_GETFL) | os.O_CLOEXEC
        opened = os.open(f"/proc/self/fd/{number}", flags)
        os.lseek(opened, place, os.SEEK_SET)
        os.dup2(opened, number, inheritable=os.get_inheritable(number))
        os.close(opened)


def _flush() -> None:
    """Write out what is buffered, which a copy would write once more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _end(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
