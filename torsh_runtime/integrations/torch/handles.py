"""Represents the processes that are to be members of a reconfigured group."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from torsh_runtime.backends.native.host_info import node_here
from torsh_runtime.errors import ConfigError

_KIND = "torsh:"


class ReconfigureError(ConfigError, RuntimeError):
    """Reports a wrong call of torch's reconfigure functions; the group is as it was before.

    It is a RuntimeError, as torch's own backends raise.
    """


class Handle(NamedTuple):
    """Identifies a process's end of a group, and tells where it is."""

    identity: str
    """A random number, which no other process and no other group has."""
    group: str
    """The name of the group, the same on all members."""
    host: str
    """The host's name, for people."""
    machine: str
    """The kernel's boot id."""
    pid_namespace: str
    pid: int
    started: str
    """The time at which the process began, in the kernel's ticks; its pid may be used again."""
    generation: str
    """The text that members of a reconfigured group have in common; "" if it is not one."""
    rank: int
    """The rank in the present group."""

    @classmethod
    def here(cls, identity: str, group: str, generation: str, rank: int) -> Handle:
        """Return the handle of this process."""
        return cls(identity, group, *_place(os.getpid()), generation, rank)

    def pack(self) -> str:
        """Return the handle as text, which the program gives to the other members."""
        return _KIND + json.dumps(self)

    @classmethod
    def unpack(cls, text: str) -> Handle:
        """Decode the output of pack(). Raises ValueError if it is something else."""
        if not text.startswith(_KIND):
            raise ValueError
        found = json.loads(text.removeprefix(_KIND))
        kinds = [int if name in ("pid", "rank") else str for name in cls._fields]
        if not isinstance(found, list) or [type(each) for each in found] != kinds:
            raise ValueError
        return cls(*found)

    def __str__(self) -> str:
        """Return what people call the process."""
        return f"process {self.pid} on {self.host}"

    @property
    def described(self) -> str:
        """Return what people call the process, and whether it is stopped."""
        if self.is_stopped:
            return f"{self}, which is stopped: `kill -CONT {self.pid}` lets it go on"
        return str(self)

    @property
    def is_stopped(self) -> bool:
        """Return whether the process is known to be stopped, by SIGSTOP or a debugger."""
        return self._is_near and _status(self.pid)[0] in ("T", "t")

    @property
    def has_ended(self) -> bool:
        """Return whether the process is known to have ended, as it can be on this machine."""
        if not self._is_near:
            return False
        state, started = _status(self.pid)
        return state in ("", "Z", "X") or started != self.started

    @property
    def _is_near(self) -> bool:
        _, *node, _, _ = _place(os.getpid())
        return [self.machine, self.pid_namespace] == node


def members(given: Collection[str], own: Handle) -> tuple[list[Handle], int]:
    """Return the members that these handles describe, in order of rank, and this process's rank.

    A list has the order of the ranks; a set is put into the same order on all members. Raises
    ReconfigureError for what is no handle, for a process that is given twice, for a handle of
    another group, and if this process is not among them.
    """
    texts = sorted(given) if isinstance(given, set | frozenset) else list(given)
    found = [_unpacked(place, text) for place, text in enumerate(texts)]
    places: dict[str, int] = {}
    for place, each in enumerate(found):
        first = places.setdefault(each.identity, place)
        if first != place:
            raise ReconfigureError(
                f"reconfigure handles must be unique: {first} and {place} are both of {each}"
            )
        if each.group != own.group:
            raise ReconfigureError(
                f"reconfigure handle {place}, of {each}, is of the group {each.group!r}, and not "
                f"of {own.group!r}: each member passes handles of this group"
            )
    if own.identity not in places:
        raise ReconfigureError(
            f"none of the {len(found)} reconfigure handles is that of this process, {own}: only "
            f"members call reconfigure(), and each passes its own handle too"
        )
    return found, places[own.identity]


def _unpacked(place: int, text: str) -> Handle:
    try:
        return Handle.unpack(text)
    except (ValueError, AttributeError, RecursionError):
        raise ReconfigureError(
            f"reconfigure handle {place} is not one of a torsh group: {str(text)[:100]!r}"
        ) from None


def named(found: Sequence[Handle], ranks: Sequence[int]) -> str:
    """Return which processes these ranks are."""
    known = [rank for rank in ranks[:_MOST_NAMES] if rank in range(len(found))]
    return "; ".join(f"rank {rank} is {found[rank].described}" for rank in known)


_MOST_NAMES = 8


@cache
def _place(pid: int) -> tuple[str, str, str, int, str]:
    """Return where this process is, whose pid that is: what a handle tells of it."""
    node = node_here()
    return socket.gethostname(), node.machine, node.pid_namespace, pid, _status(pid)[1]


def _status(pid: int) -> tuple[str, str]:
    """Return the process's state and when it began; ("", "") if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
