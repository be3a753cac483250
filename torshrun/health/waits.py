"""Finds what a process waits for in the kernel: the object of a system call that blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torshrun.procfs import children, read_stat, read_text
from torshrun.text import printable

MOST_PROCESSES = 64
"""Processes of a worker that are looked at, until one is found that has a pipe's other end."""
_CALLS = {
    "x86_64": {
        "read": 0, "write": 1, "fsync": 74, "fdatasync": 75, "flock": 73, "fcntl": 72,
        "accept": 43, "accept4": 288, "recvfrom": 45, "recvmsg": 47, "sendto": 44, "connect": 42,
        "wait4": 61, "waitid": 247,
    },
    "aarch64": {
        "read": 63, "write": 64, "fsync": 82, "fdatasync": 83, "flock": 32, "fcntl": 25,
        "accept": 202, "accept4": 242, "recvfrom": 207, "recvmsg": 212, "sendto": 206,
        "connect": 203, "wait4": 260, "waitid": 95,
    },
}  # fmt: skip
_LOCK = re.compile(r"^(?P<number>\d+): (?P<waits>-> )?\w+ +\S+ +\S+ (?P<pid>-?\d+) ", re.MULTILINE)
_LISTENS = "0A"  # a connection's state in /proc/net/tcp


class Wait(NamedTuple):
    """Describes what a process waits for."""

    what: str
    """For a sentence: "the lock of /data/build.lock, which python (pid 812) holds"."""
    holder: int = 0
    """The pid of the process that has what it waits for; 0 is unknown."""


def wait_of(pid: int) -> Wait | None:
    """Return what the main thread of the process waits for; None if it runs, waits for nothing that
    has a name, or may not be looked at.
    """
    words = read_text(f"/proc/{pid}/syscall", 200).split()
    if len(words) < 3 or not words[0].isdecimal():
        return None
    numbers = _CALLS.get(os.uname().machine, {})
    name = next((name for name, number in numbers.items() if number == int(words[0])), "")
    object_of = _OBJECTS.get(name)
    return object_of(pid, int(words[1], 16)) if object_of else None


def _child(_pid: int, argument: int) -> Wait:
    """Describe a wait for a child.

    `argument` is a pid, or less than 1 for any child, as 32 bits with a sign.
    """
    child = argument & 0xFFFFFFFF
    if 0 < child < 1 << 31:
        return Wait(f"the end of {_named(child)}", child)
    return Wait("the end of a process that it had started")


def _child_of_waitid(pid: int, kind: int) -> Wait:
    words = read_text(f"/proc/{pid}/syscall", 200).split()
    return _child(pid, int(words[2], 16) if kind == 1 and len(words) > 2 else 0)  # P_PID


def _lock(pid: int, descriptor: int) -> Wait:
    holder = lock_holder(pid, read_text("/proc/locks"))
    held = f", which {_named(holder)} holds" if holder else ""
    return Wait(f"the lock of {_target(pid, descriptor) or 'a file'}{held}", holder)


def _fcntl(pid: int, descriptor: int) -> Wait | None:
    return _lock(pid, descriptor) if lock_holder(pid, read_text("/proc/locks")) else None


def lock_holder(pid: int, locks: str) -> int:
    """Return which process holds the lock that `pid` waits for, by /proc/locks; 0 is unknown."""
    found = [*_LOCK.finditer(locks)]
    wanted = {each["number"] for each in found if each["waits"] and int(each["pid"]) == pid}
    holders = [each for each in found if each["number"] in wanted and not each["waits"]]
    return next((max(int(each["pid"]), 0) for each in holders), 0)


def _data(verb: str) -> Callable[[int, int], Wait | None]:
    def wait(pid: int, descriptor: int) -> Wait | None:
        target = _target(pid, descriptor)
        if target.startswith("socket:"):
            return _socket(pid, target, verb)
        if target.startswith("pipe:"):
            other = _other_end(pid, target)
            ends = f", whose other end {_named(other)} has" if other else ""
            name = "stdin, a pipe" if descriptor == 0 else "a pipe"
            return Wait(f"{verb} {name}{ends}", other)
        if descriptor == 0:
            return Wait(f"{verb} stdin ({target})")
        return Wait(f"{verb} {target}") if target else None

    return wait


def _socket(pid: int, target: str, verb: str) -> Wait | None:
    """Describe a wait on a socket, by the tables of the process's own network namespace."""
    inode = target.partition("[")[2].rstrip("]")
    for table in ("tcp", "tcp6"):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[9] == inode:
                local, remote = _address(fields[1]), _address(fields[2])
                return Wait(
                    f"a connection to its port {local.rpartition(':')[2]}"
                    if fields[3] == _LISTENS
                    else f"{verb} its connection with {remote}"
                )
    return None


def _address(text: str) -> str:
    """Return the address in hexadecimal words of the machine's order, here little-endian."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[start : start + 8])[::-1] for start in range(0, len(host), 8)]
    address = b"".join(words)
    is_mapped = address[:12] == b"\0" * 10 + b"\xff\xff"
    if len(address) == 4 or is_mapped:
        return f"{'.'.join(map(str, address[-4:]))}:{int(port, 16)}"
    return f"[{address.hex(':', 2)}]:{int(port, 16)}"


def _other_end(pid: int, target: str) -> int:
    """Return a child or the parent of this process that has the pipe, too; 0 is unknown."""
    stat = read_stat(pid)
    related = [*children(pid), *([stat.parent] if stat else [])]
    return next((each for each in related[:MOST_PROCESSES] if target in _targets(each)), 0)


def _targets(pid: int) -> Iterator[str]:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except OSError:
        return
    yield from (_target(pid, int(number)) for number in numbers)


def _target(pid: int, descriptor: int) -> str:
    try:
        return printable(str(Path(f"/proc/{pid}/fd/{descriptor & 0xFFFFFFFF}").readlink()))
    except OSError:
        return ""


def _named(pid: int) -> str:
    stat = read_stat(pid)
    return f"{printable(stat.name)} (pid {pid})" if stat else f"pid {pid}, which has ended"


_OBJECTS: Mapping[str, Callable[[int, int], Wait | None]] = {
    "flock": _lock,
    "fcntl": _fcntl,
    "wait4": _child,
    "waitid": _child_of_waitid,
    "accept": _data("accepts on"),
    "accept4": _data("accepts on"),
    "connect": _data("an answer of"),
    "read": _data("data from"),
    "recvfrom": _data("data from"),
    "recvmsg": _data("data from"),
    "write": _data("room in"),
    "sendto": _data("room in"),
    "fsync": _data("the disk of"),
    "fdatasync": _data("the disk of"),
}
