"""Places large numpy arrays where the ranks of a node can reach each other's.

Behind the memory of the default group's collectives, its file has room for arrays of each rank;
only the used part takes memory. numpy puts the data of large arrays there (NEP 49), and collectives
of them need no copies in between, as with `empty_shared`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.node_file import Room, may_map_all, memory
from torsh_runtime.errors import ConfigError

SWITCH = "TORSH_SHARE_ARRAYS"
"""The environment variable that turns this off: 0."""
_KEPT = 16
"""A rank keeps so much of its share of the machine's memory for arrays to come: one part of 16."""
_UNLIKE_REGIONS = 1 << 63
"""Regions are counted from 1, and the shared heap is a region with another number."""


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the environment asks for shared arrays.

    Raises ConfigError naming the variable if its value is neither 0 nor 1.
    """
    text = environ.get(SWITCH, "1")
    if text not in ("0", "1"):
        raise ConfigError(f"{SWITCH}={text!r} is neither 0 nor 1")
    return text == "1"


def share(
    file: int, room: Room, local: Sequence[int], rank: int, pids: Sequence[int]
) -> _native.SharedArrays | None:
    """Place new large arrays of this thread's context in the file, until end() of the result.

    Returns None if that is impossible or unwanted: the file has no room for arrays, the process may
    not map it, or its user has chosen a different allocator for numpy.

    `room` is the place of the arrays in the file, `local` the ranks of this rank's node, and `pids`
    their processes.
    """
    status = os.fstat(file)
    has_room = status.st_size >= room.end(len(local)) and may_map_all()
    if not has_room or not _native.SharedArrays.possible():
        return None
    try:
        arrays = _native.SharedArrays(
            file,
            *room,
            min(memory(), _limit_of_cgroup()) // _KEPT // len(local),
            local.index(rank),
            list(pids),
            status.st_ino | _UNLIKE_REGIONS,
        )
    except RuntimeError:  # the system refuses what it takes, or to give memory back
        return None
    arrays.begin()
    return arrays


def _limit_of_cgroup() -> int:
    """Return the bytes that the control groups of this process may use, as far as they can be read.

    See cgroups(7), versions 1 and 2.
    """
    limits = [sys.maxsize]
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top = Path("/sys/fs/cgroup", controllers)
            file = "memory.limit_in_bytes" if controllers else "memory.max"
            for folder in (top / name.lstrip("/"), *(top / name.lstrip("/")).parents):
                with suppress(OSError, ValueError):  # "max" is no number
                    limits.append(int((folder / file).read_text()))
    return min(limits)
