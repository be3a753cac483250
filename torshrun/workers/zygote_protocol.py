"""Defines the events that a zygote's machine handles, and the instructions it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# ---- events


@dataclass(frozen=True, slots=True)
class Beginning:
    """Reports that a process is about to start that imports, for a number of standbys."""

    wanted: int


@dataclass(frozen=True, slots=True)
class Started:
    """The process has been started."""

    process: int


@dataclass(frozen=True, slots=True)
class StartRefused:
    """No process could be started in the place of the last one."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Reports that the process has imported what was requested."""

    modules: tuple[str, ...] = ()
    failed: Mapping[str, str]
    """Modules that cannot be imported, and why."""
    reads: Mapping[str, str]
    """Modules that read a variable which differs from worker to worker, and which."""
    why_not_fork: str = ""
    weight: int = 0
    """Bytes of memory that it has."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The process that imports has ended."""

    how: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Asks for a number of standbys, with memory left for each."""

    standbys: int
    room: int


@dataclass(frozen=True, slots=True)
class RoomSeen:
    """Reports what the machine has left: bytes of memory, and processes and threads."""

    memory: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Imported:
    """Reports that a worker has imported what a file names, and the size of that file in bytes."""

    recorded: str
    size: int


@dataclass(frozen=True, slots=True)
class Forking:
    """A standby is being forked."""

    standby: int


@dataclass(frozen=True, slots=True)
class Owned:
    """The keeper knows the standby, which waits now."""

    standby: int


@dataclass(frozen=True, slots=True)
class Died:
    """A standby has ended, or says nothing any more."""

    standby: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The newest standby has become a worker, or (not `is_usable`) does not hear that it is to."""

    is_usable: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Something went wrong with what the process is doing."""

    why: str


@dataclass(frozen=True, slots=True)
class Closed:
    """Reports that no standbys are needed any more."""


Event = (
    Beginning
    | Started
    | StartRefused
    | Announced
    | Ended
    | Wanted
    | RoomSeen
    | Imported
    | Forking
    | Owned
    | Died
    | Taken
    | Failed
    | Closed
)


# ---- instructions


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a process that imports."""


@dataclass(frozen=True, slots=True)
class LookForRoom:
    """Find out what the machine has left, if standbys are missing."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Have the process fork a standby, if it still forks."""


@dataclass(frozen=True, slots=True)
class Import:
    """Have the process import what this file names."""

    recorded: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill this process, and let go of it."""

    process: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Hear nothing more of this process."""

    process: int


@dataclass(frozen=True, slots=True)
class Expect:
    """Sets the seconds after which what was begun has failed, in place of an earlier limit."""

    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class ExpectNothing:
    """Cancels the time limit that Expect set."""


@dataclass(frozen=True, slots=True)
class Complain:
    """Reports a problem to people."""

    why: str


@dataclass(frozen=True, slots=True)
class TellChange:
    """Reports that a standby is ready, or that none is expected any more."""


Instruction = (
    Begin
    | LookForRoom
    | Fork
    | Import
    | Kill
    | LetGo
    | Expect
    | ExpectNothing
    | Complain
    | TellChange
)
