"""Holding a process at the entry of a system call, by ptrace."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterator

CALLS = {"x86_64": {"process_vm_writev": 311}, "aarch64": {"process_vm_writev": 271}}
_SYSCALL, _DETACH, _SEIZE, _INTERRUPT, _SYSCALL_INFO = 24, 17, 0x4206, 0x4207, 0x420E
_SYSGOOD = 1  # option: tell stops at system calls from others
_ENTRY = 1
_MOST_STOPS = 10_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace request {request:#x} of process {pid}")


def _entered(pid: int) -> int:
    """The system call that the process is about to make; -1 if it is elsewhere."""
    info = ctypes.create_string_buffer(88)
    _ptrace(_SYSCALL_INFO, pid, len(info), ctypes.addressof(info))
    return struct.unpack_from("Q", info, 24)[0] if info.raw[0] == _ENTRY else -1


@contextlib.contextmanager
def held_at_call(pid: int, name: str) -> Iterator[None]:
    """Let the process's first thread run until it enters this system call, and hold it there: the
    kernel has not looked at the call's arguments yet. It goes on afterwards.
    """
    number = CALLS[platform.machine()][name]
    _ptrace(_SEIZE, pid, 0, _SYSGOOD)
    _ptrace(_INTERRUPT, pid)
    os.waitpid(pid, 0)
    try:
        for _ in range(_MOST_STOPS):
            _ptrace(_SYSCALL, pid)
            os.waitpid(pid, 0)
            if _entered(pid) == number:
                break
        else:
            raise AssertionError(f"process {pid} never called {name}")
        yield
    finally:
        _ptrace(_DETACH, pid)
