"""Defines the events that the machine handles, and the instructions it returns. All frozen."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torshrun.rendezvous import base

Cause = Literal["done", "failure", "hang", "no start", "signal", "dead man", "closing", "verdict"]
"""closing: another round is to follow; verdict: the job is over."""


# ---- events; those that name a round change nothing once it is over. Workers are named by their
# local ranks, as their ranks may become others.


class WorkerEnded(NamedTuple):
    """A worker runs no more. Its process may take a while to end after that."""

    round: int
    rank: int
    status: int
    """Exit status in the format of waitpid."""


class NotStarted(NamedTuple):
    """The round, or a worker's program, could not be started; trying again will not help."""

    round: int
    errno: int = 0
    """Error with which the system refused the program; 0 if starting it was not attempted."""
    code: int = 0
    """Exit code for that; 0: the one that `errno` has."""


class DeadManFired(NamedTuple):
    """The keeper killed all workers, because the agent did not renew its lease in time."""

    round: int


class KeeperLost(NamedTuple):
    """The keeper is gone, and direct workers with it."""


class SettleOver(NamedTuple):
    """The seconds of the instruction Settle have passed."""

    round: int


class StopRequested(NamedTuple):
    """Reports that somebody sent this signal to the agent."""

    signo: int


class Noticed(NamedTuple):
    """Workers are to get this signal, since somebody sent it to the agent or the end is near."""

    signo: int
    handled_only: bool = False
    """Only those that handle it: others would die of what nobody has asked for."""


class Hung(NamedTuple):
    """The workers make no progress."""

    round: int
    signo: int
    """Signal with which to stop them."""
    suspect: int = -1
    """The one that the others wait for, if it is here; -1 if it is not, or that cannot be told."""
    place: Literal["here", "elsewhere", "unknown"] = "here"
    """The node of that rank."""


class Joined(NamedTuple):
    """A worker can go on without others, and give its state to a replacement."""

    rank: int
    is_fixed: bool = False
    """True if it can only go on among as many workers as there are."""


class Left(NamedTuple):
    """A worker that had joined goes on alone, and cannot meet a replacement any more."""

    rank: int
    is_early: bool = False
    """True if it did not take all steps."""


class Refused(NamedTuple):
    """A worker is about to end, as join() cannot recover what its program does."""

    rank: int


class Parked(NamedTuple):
    """A worker has left the round that is over, and waits for the next."""

    round: int
    rank: int


class ParkingOver(NamedTuple):
    """The time in which workers were to park is over."""

    round: int


class CopyMissing(NamedTuple):
    """There is no copy that could take the place of a lost worker."""

    round: int


class Diagnosed(NamedTuple):
    """No process of the round is left, but for the unkillable, and its root cause is known."""

    report: base.Report
    """Report as if the root cause were everything; its code is 0 if no worker failed."""
    unkillable: tuple[str, ...] = ()
    """Processes that outlived SIGKILL, as a person would name them."""
    broken: str = ""
    """Reason why no workers can run on this node's GPUs any more; "" if nothing shows that."""

    @property
    def round(self) -> int:
        return self.report.round


class InternalError(NamedTuple):
    """An event was lost through a mistake of the agent's own."""


OfRound = WorkerEnded | NotStarted | DeadManFired | SettleOver | Hung | Diagnosed
Recovering = Joined | Left | Refused | Parked | ParkingOver | CopyMissing
Decided = base.RoundFormed | base.RoundClosing | base.Mending | base.JobOver
Event = OfRound | Recovering | StopRequested | Noticed | Decided | KeeperLost | InternalError


# ---- instructions


class StartWorkers(NamedTuple):
    """Begin a round with all workers of this node."""

    place: base.NodeAssignment


class Settle(NamedTuple):
    """Asks to send SettleOver after this many seconds."""

    round: int
    seconds: float


class StopWorkers(NamedTuple):
    """Send the signal, 0 is none, kill what is left after `grace` seconds, report Diagnosed."""

    signo: int
    grace: float
    cause: Cause


class EndRound(NamedTuple):
    """Tell the survivors that the round is over; nobody is stopped."""

    at_commit: bool = False
    """True if they are to finish their step first. It may be followed by the same without."""


class StartAhead(NamedTuple):
    """Start processes that will be workers of the next round, in the place of these. ReplaceWorkers
    takes those that still run."""

    ranks: tuple[int, ...]


class TellExited(NamedTuple):
    """Tell workers that go on without others that this one has ended well, and nobody replaces
    it."""

    rank: int
    on_all_nodes: bool = False


class TellStanding(NamedTuple):
    """Tell the rendezvous how this node stands in the round, which its workers are to leave."""

    standing: base.Standing
    has_lost: bool = False
    """True if workers here were lost."""


class TellLasting(NamedTuple):
    """Tell the rendezvous whether the workers here keep their processes if other nodes leave the
    job or come."""

    lasting: base.Lasting


class KillWorkers(NamedTuple):
    """Kill these workers with SIGKILL. They count as lost."""

    ranks: tuple[int, ...]
    is_hang: bool = False
    """True if others wait for them; otherwise they have not parked in time."""


class TellUnfit(NamedTuple):
    """Tell the user that replacements of this rank fail in the same way before they join, so that
    all workers are restarted, or the others go on without this node."""

    rank: int
    status: int
    leaves: bool = False
    """True if this node leaves the job, which it came to."""


class WatchOn(NamedTuple):
    """Look once more whether workers hang: those of another node are probably at fault."""


class ReplaceWorkers(NamedTuple):
    """Begin the next round with the survivors, and new workers in the place of these. Report why
    these were lost; there are none if all lost workers are of other nodes, or nodes have changed.
    """

    ranks: tuple[int, ...]
    place: base.NodeAssignment


class PassOn(NamedTuple):
    """Send the signal to all workers, as a notice."""

    signo: int
    handled_only: bool = False
    """True if only those that handle it are to get it."""
    rank: int | None = None
    """The only worker that is to get it; None if all are."""


class TellRendezvous(NamedTuple):
    """Tell the rendezvous that the round is over here."""

    report: base.Report


class Leave(NamedTuple):
    """Tell the rendezvous that this node goes."""

    code: int
    outcome: Literal["preempted", "stopped"]
    signo: int


class ReportFailure(NamedTuple):
    """Tell the user about the round's failure and what happens next."""

    restarts: int
    sequel: base.Sequel | Literal["undecided", "replace"]
    """undecided: the nodes decide together, once the others have stopped their workers. replace:
    the lost workers are replaced, and the others continue."""
    delay: float = 0.0
    """Seconds until the restart."""
    unkillable: tuple[str, ...] = ()


Telling = TellStanding | TellLasting | TellExited | TellUnfit
Mend = EndRound | StartAhead | Telling | KillWorkers | WatchOn | ReplaceWorkers
Instruction = (
    StartWorkers | Settle | StopWorkers | Mend | PassOn | TellRendezvous | Leave | ReportFailure
)
