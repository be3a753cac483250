"""Holds what is known of one rank's end, from which a root cause is found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.kinds import NO_READING, Diagnosis, Kind
from torshrun.failure.numbers import Numbers
from torshrun.failure.suspect import Suspect

End = Literal["failed", "done", "stopped"]
"""The way in which a rank ended.

failed: badly, of its own accord, or with an exception before it was asked to stop. done: with code
0, of its own accord. stopped: because it was asked to.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Reports how one rank of a round ended."""

    rank: int
    end: End
    node: int = 0
    """The rank of its node."""
    how: str = ""
    """The manner of its end: "exit code 1"."""
    where: str = ""
    """The place of its end, and after how long it came, in a line."""
    at: float = 0.0
    """The time when it failed or ended, in seconds, by a clock of its node only."""
    turn: int = 0
    """The place of its node's report among all, by the store's revisions."""
    reading: Diagnosis = NO_READING
    """The diagnosis of its end, if it failed."""
    is_unsure: bool = False
    """True if `reading` was taken from words that may be about something other than its end."""
    said: str = ""
    """The rank's error, in one line."""
    alike: str = ""
    """Equal for failures that are alike."""
    blame: Suspect | None = None
    """The ranks that it blames; None if nobody, so its failure is its own."""
    call: str = ""
    """The last collective of its own, with its arguments, as torch noted it; "" is unknown."""
    standing: BlockedAt | None = None
    """The place where it was blocked; None is unknown."""
    peak: int = 0
    """The most memory it had at a time, in KiB; 0 is unknown."""
    versions: str = ""
    """Versions of Python and libraries that it had loaded when it failed; "" is unknown."""
    thread: str = ""
    """The error that had ended one of its threads before it was asked to stop; "" is none."""
    warning: str = ""
    """A warning of NaN or infinite numbers, which it had written; "" is none."""
    numbers: Numbers | None = None
    """The numbers that it wrote, if it failed because of NaN or an infinity; None is nothing."""
    looks_alone: bool = False
    """True if its error is about what only this rank looks at, by a condition on the rank."""
    child: str = ""
    """The bad end of a process that it had started, if it took no notice, or what that process
    waits for; "" is none.
    """
    handles: str = ""
    """The exception that it was handling when it was asked to stop; "" is none."""
    awaits: str = ""
    """The object that its main thread waited for in the kernel, outside of collectives: "the lock
    of /data/build.lock, which python (pid 812) holds"; "" is unknown.
    """
    holder: int = -1
    """The rank that held that object; -1 is none that is known."""
    rival: int = -1
    """The rank that held the port or the lock that it could not have; -1 is none that is known."""
    mutters: Suspect | None = None
    """The ranks that it complained about while it still ran; None if nobody."""
    unmade: str = ""
    """The lines where it said that it could not make a file; "" if it did not."""
    removed: str = ""
    """The lines where it said that it removes or moves files, or cleans up; "" if it did not."""
    logged: str = ""
    """The last exception that it had handled and written, in one line; "" is none."""
    is_frozen: bool = False
    """True if its process was stopped by a signal or a debugger."""
    is_deaf: bool = False
    """True if its process waited in the kernel, where no signal reaches it (state D)."""
    is_busy: bool = False
    """True if its main thread had a processor, or waited for one."""
    hung: str = ""
    """The hang, in one line, if it seems to be the rank that others waited for."""

    @property
    def is_own(self) -> bool:
        """Return whether it failed, and blames nobody."""
        return self.end == "failed" and self.blame is None

    @property
    def strength(self) -> int:
        """Return how much its failure looks like a first one, which no other led to: 1 to 3."""
        if self.reading.kind in _FIRST:
            return 3
        return 1 if self.reading.kind is Kind.EXIT_CODE else 2


_FIRST = (Kind.OUT_OF_MEMORY, Kind.CRASHED, Kind.KILLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A node of the round that was lost, with its ranks."""

    node: int
    """The rank of the node."""
    name: str
    """The node's name, as people know it."""
    ranks: range = range(0)
    """The ranks of its workers; empty is unknown."""
    why: str = ""
    """A description of its end: "its lease ended"; "" is nothing."""
    is_unable: bool = False
    """True if it is reachable, but cannot run workers for that reason."""
