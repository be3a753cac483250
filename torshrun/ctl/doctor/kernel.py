"""Examines which features of the kernel may be used.

The collectives and the agent need anonymous files, pidfds and copying from other processes' memory.
They profit from huge pages.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.procfs import ROOT, read_number, read_text

_NOT_YAMA = -1
_SECCOMP = "A seccomp filter or an old kernel forbids it: allow the call in the container's profile"


@dataclass(frozen=True, slots=True)
class Kernel:
    release: str
    memfd: int
    """The errno of creating an anonymous file, or 0 if it works."""
    pidfd: int
    """The errno of opening a pidfd, or 0 if it works."""
    reads_memory: int
    """The errno of process_vm_readv within this process, or 0 if it works."""
    ptrace_scope: int
    """Yama's ptrace_scope, or -1 without Yama."""
    huge_pages: str
    """The policy in brackets of transparent_hugepage/enabled. Empty if there is none."""


def gather(root: Path = ROOT) -> Kernel:
    scope = read_number(root / "proc/sys/kernel/yama/ptrace_scope")
    policies = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return Kernel(
        release=platform.release(),
        memfd=_attempt(lambda: os.memfd_create("doctor")),
        pidfd=_attempt(lambda: os.pidfd_open(os.getpid())),
        reads_memory=_read_own_memory(),
        ptrace_scope=_NOT_YAMA if scope is None else scope,
        huge_pages=policies.partition("[")[2].partition("]")[0],
    )


def _attempt(opening: Callable[[], int]) -> int:
    try:
        os.close(opening())
    except OSError as error:
        return error.errno or errno.EPERM
    except AttributeError:  # Python was built on a system without the call
        return errno.ENOSYS
    return 0


class _Piece(ctypes.Structure):
    """Represents a struct iovec in C."""

    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def _read_own_memory() -> int:
    """Call process_vm_readv on this process and return its errno, or 0.

    Every process may read its own memory. A filter that forbids the call forbids this, too.
    """
    source, target = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
    to, where = (_Piece(ctypes.addressof(each), 8) for each in (target, source))
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    pointer, number = ctypes.POINTER(_Piece), ctypes.c_ulong
    call.argtypes = (ctypes.c_int, pointer, number, pointer, number, number)
    call.restype = ctypes.c_ssize_t
    copied = call(os.getpid(), ctypes.byref(to), 1, ctypes.byref(where), 1, 0)
    return 0 if copied == 8 else ctypes.get_errno() or errno.EPERM


def check(facts: Kernel) -> Iterator[Finding]:
    yield ok("Linux", facts.release)
    yield _needed("memfd_create", facts.memfd, "ranks of a node need it to share memory")
    yield _needed("pidfd_open", facts.pidfd, "it detects lost ranks (Linux 5.3 and newer)")
    yield _reading(facts)
    yield _huge_pages(facts)


def _needed(call: str, failure: int, why: str) -> Finding:
    if failure:
        told = f"refused: {os.strerror(failure)}"
        return problem(call, told, f"{_SECCOMP}; {why}.")
    return ok(call, "works")


def _reading(facts: Kernel) -> Finding:
    call = "process_vm_readv"
    slower = "without it large arrays are copied through shared memory, which is slower"
    if facts.reads_memory:
        told = f"refused: {os.strerror(facts.reads_memory)}"
        return warning(call, told, f"{_SECCOMP} (docker --cap-add SYS_PTRACE); {slower}.")
    if facts.ptrace_scope >= 2:
        told = f"Yama's ptrace_scope is {facts.ptrace_scope}: ranks may not use it"
        return warning(call, told, f"sysctl -w kernel.yama.ptrace_scope=1 allows it; {slower}.")
    if facts.ptrace_scope == 1:
        return note(
            call,
            "works; Yama's ptrace_scope is 1",
            "Start ranks with torshrun, which lets those of a node reach each other; ranks that "
            f"are started by hand, torchrun or mpiexec cannot, and {slower}.",
        )
    return ok(call, "works")


def _huge_pages(facts: Kernel) -> Finding:
    what = "transparent huge pages"
    if facts.huge_pages == "never":
        return note(
            what,
            "never",
            "Large arrays may be faster with them: echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled, as root.",
        )
    return ok(what, facts.huge_pages or "not there")
