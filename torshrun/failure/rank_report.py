"""What is known of one rank's end: what a root cause is found from, on one node or many. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.kinds import NO_READING, Diagnosis, Kind
from torshrun.failure.numbers import Numbers
from torshrun.failure.suspect import Suspect

End = Literal["failed", "done", "stopped"]
"""failed: badly, by itself, or with an exception before it was asked to stop. done: with code 0, by
itself. stopped: because it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank of a round that is over."""

    rank: int
    end: End
    node: int = 0
    """Its node's rank."""
    how: str = ""
    """The manner of its end: "exit code 1"."""
    where: str = ""
    """Where that was, and after how long, in a line."""
    at: float = 0.0
    """When it failed or ended, in seconds, by a clock of its node's alone."""
    turn: int = 0
    """The place of its node's report among all, by the store's revisions."""
    reading: Diagnosis = NO_READING
    """What its end shows, if it failed."""
    is_unsure: bool = False
    """Whether that was taken from words that may be of something else than its end."""
    said: str = ""
    """Its error, in one line."""
    alike: str = ""
    """Equal for failures that are alike."""
    blame: Suspect | None = None
    """Whom it blames; None: nobody, so its failure is its own."""
    call: str = ""
    """The last collective of its own, with its arguments, as torch noted it; "" is unknown."""
    standing: BlockedAt | None = None
    """Where it stood; None is unknown."""
    peak: int = 0
    """The most memory it had at a time, in KiB; 0 is unknown."""
    versions: str = ""
    """Of Python and libraries that it had loaded when it failed; "" is unknown."""
    thread: str = ""
    """The error that had ended a thread of it before it was asked to stop; "" is none."""
    warning: str = ""
    """A warning of numbers that are none, which it had written; "" is none."""
    numbers: Numbers | None = None
    """What it wrote of its numbers, if it failed because of one that is none; None is nothing."""
    looks_alone: bool = False
    """Whether its error is about what only this rank looks at, by a condition on the rank."""
    child: str = ""
    """How a process that it had started ended badly, if it has taken no notice, or for what that
    waits; "" is none."""
    handles: str = ""
    """The exception that it was handling when it was asked to stop; "" is none."""
    awaits: str = ""
    """What its main thread waited for in the kernel, outside of collectives: "the lock of
    /data/build.lock, which python (pid 812) holds"; "" is unknown."""
    holder: int = -1
    """The rank that had that; -1 is none that is known."""
    rival: int = -1
    """The rank that held the port or the lock that it could not have; -1 is none that is known."""
    mutters: Suspect | None = None
    """Whom it complained about while it still ran; None: nobody."""
    unmade: str = ""
    """Where it said that it could not make a file; "" if it did not."""
    removed: str = ""
    """Where it said that it removes or moves files, or cleans up; "" if it did not."""
    logged: str = ""
    """The last exception that it had handled and written, in one line; "" is none."""
    is_frozen: bool = False
    """Whether its process stood still by a signal or a debugger."""
    is_deaf: bool = False
    """Whether its process waited in the kernel, where no signal reaches it (state D)."""
    is_busy: bool = False
    """Whether its main thread had a processor, or waited for one."""
    hung: str = ""
    """The hang, in one line, if it seems to be the rank that others waited for."""

    @property
    def is_own(self) -> bool:
        """Whether it failed, and blames nobody."""
        return self.end == "failed" and self.blame is None

    @property
    def strength(self) -> int:
        """How much its failure looks like one that no other led to."""
        if self.reading.kind in _FIRST:
            return 3
        return 1 if self.reading.kind is Kind.EXIT_CODE else 2


_FIRST = (Kind.OUT_OF_MEMORY, Kind.CRASHED, Kind.KILLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A node of the round that was lost, with its ranks."""

    node: int
    """Its rank."""
    name: str
    """As people know it."""
    ranks: range = range(0)
    """Of its workers; empty is unknown."""
    why: str = ""
    """What is known of its end: "its lease ended"; "" is nothing."""
    is_unable: bool = False
    """Whether it is there, and cannot run workers, for that reason."""
