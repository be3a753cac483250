"""The Rendezvous port: how an agent learns its place in each round, and how rounds and the job end.

A rendezvous tells the agent of rounds by posting events, and the agent tells it what became of its
workers by reports. Only one round exists at a time, and rounds never overlap on a node: the agent
reports the end of all its workers of a round before it is told of the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from torshrun.exit_codes import LOST

if TYPE_CHECKING:  # at the start it would take time
    from torshrun.health.clocks import CommonClock


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAssignment:
    """Holds this node's place in a round, and what its workers must know of the round."""

    round: int
    """The round's number; grows, from 0."""
    restarts: int
    """Number of restarts of workers after failures, in the whole job."""
    node_rank: int
    """0 <= node_rank < num_nodes."""
    num_nodes: int
    first_rank: int
    """The rank of this node's first worker; the others follow."""
    world_size: int
    """Number of workers of all nodes."""
    role_first_rank: int = -1
    """First rank among the workers of this node's role; -1 if all workers have the same role."""
    role_world_size: int = -1
    master_addr: str
    """Host of node rank 0, where its first worker may bind the two ports."""
    master_port: int
    jax_port: int
    store_node: str = ""
    """The id of node rank 0; "" in a job of one node."""
    store_endpoint: str = ""
    """Endpoint of the round's store for agents, "tcp:host:port"; "" in a job of one node."""
    finding: str = ""
    """The root cause of the failure of the round before, as in Verdict; "" if that is not known."""
    since: int = -1
    """The round in which the oldest of its workers were started; -1 is this one."""
    departed: int = 0
    """Number of nodes that were in a round of the job before, and are in none any more."""
    kept: bool = False
    """True if workers of the round before go on in it, and new ones get their state."""


ReportOutcome = Literal["succeeded", "failed", "hung", "noticed", "stopped", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Reports how this node's workers of a round ended. None of them runs any more."""

    round: int
    outcome: ReportOutcome
    """failed: by themselves; hung: they made no progress; noticed: of a signal that they were sent
    as a notice of preemption; stopped: because the agent was told to stop them; lost: the agent
    cannot run workers here any more (no keeper, no descriptors, unkillable processes, a broken
    GPU)."""
    code: int = 0
    """The root cause's exit code; 0 if there is none."""
    signo: int = 0
    """The signal that the root cause was killed by; 0 if none."""
    startup: str = ""
    """Description of a failure at the start that a retry may not change; "" if there was none."""
    seconds: float = 0.0
    """Seconds for which the workers ran."""
    cause: str = ""
    """The root cause in one line, for people on other nodes; "" if there is none."""
    follows: bool = False
    """True if the workers failed because they lost a worker of another node, which is at fault."""
    testimony: str = ""
    """Facts about how ranks here ended, encoded by failure/exported_reports.py; "" if none."""

    @property
    def ending(self) -> Outcome:
        """Return how the job ends if it ends by this report."""
        if self.outcome == "noticed":
            return "preempted"
        if self.outcome == "lost" and self.code != LOST:  # what could not be started has a code
            return "failed"
        return self.outcome


Lasting = Literal["", "same", "any"]
"""Says whether the workers of a node can keep their processes when nodes leave or come: not at all,
if as many ranks go on, or in any case."""
Standing = Literal["lost", "parked", "bare", "unable"]
"""Standing of a node in a round that its workers leave while they keep their processes.
lost: it has lost workers, and the others here have still to leave the round. parked: they have,
and at least one has the state of the training. bare: nobody here has that state. unable: the
workers here cannot go on in another round."""
Outcome = Literal["succeeded", "failed", "hung", "stopped", "preempted", "lost"]
Sequel = Literal[
    "restart",
    "no budget",
    "budget spent",
    "same start",
    "refused",
    "stopped",
    "unkillable",
    "broken",
]
"""Consequence of a failure. broken: this node's GPUs are, and it leaves the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """States how the job ended, which is the same for all nodes that took part to the end."""

    outcome: Outcome
    """lost: this node could not learn how the job ended."""
    code: int
    """The exit code of torshrun."""
    reason: str
    """Sentence for people; names the node and worker of the root cause if there is one."""
    sequel: Literal[Sequel, ""] = ""
    """Reason why there was no restart, if a failure ended the job."""
    finding: str = ""
    """Root cause of the last round's failure, from failure/exported_reports.py; "" is none."""


# ---- events for the agent


@dataclass(frozen=True, slots=True)
class RoundFormed:
    """Start the workers of a round."""

    place: NodeAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundClosing:
    """Stop the workers of this round if any still run, then report; another round will follow."""

    round: int
    reason: str
    """Reason in one line: "node b (10.0.0.2) was lost", "rank 3 on node b failed"."""
    failed: bool
    """True if a failure of workers is the reason, and not a change of membership."""
    restarts: int = 0
    """Number of restarts of workers, including this one."""
    delay: float = 0.0
    """Seconds until the next round may begin."""


@dataclass(frozen=True, slots=True)
class RoundOver:
    """Have the workers of this round leave it; those that are left go on in the next."""

    round: int
    reason: str
    """Reason in one line: "node b has lost workers", "node b (10.0.0.2) was lost"."""
    at_commit: bool = False
    """True if they are to finish their step first. It may be said again without."""


@dataclass(frozen=True, slots=True)
class RoundMended:
    """Begin the next round: the workers here keep their processes, but for those that were lost.

    Its nodes may be others, and the ranks of the workers here as well.
    """

    place: NodeAssignment


@dataclass(frozen=True, slots=True)
class JobOver:
    """Stop the workers if any still run, and end. Nothing follows but Granted while they do."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StandingBy:
    """No place yet; why, in one line for a person."""

    reason: str


@dataclass(frozen=True, slots=True)
class Granted:
    """Lets this node run workers until the given time, and not longer without a further grant."""

    until: float
    """Seconds of time.monotonic()."""


@dataclass(frozen=True, slots=True)
class Summaries:
    """The last thing that each agent told the leader, if that is this node: at every interval, and
    once with none when there are none any more.
    """

    by_node: Mapping[str, bytes]
    """Summaries of the present nodes, including this one, by node id."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Asks this agent a question of torshctl; the answer goes to `Rendezvous.answer`."""

    id: str
    kind: str
    argument: str
    most: int
    """Bytes that the answer may have."""


class Answer(NamedTuple):
    """Holds an agent's answer to a question."""

    content: bytes
    """Compressed by zlib; what is cut off is its end."""
    trouble: str = ""
    """Reason why there is no answer; "" if there is one."""


Mending = RoundOver | RoundMended
RendezvousEvent = (
    RoundFormed | RoundClosing | Mending | JobOver | StandingBy | Granted | Summaries | Asked
)
Post = Callable[[RendezvousEvent], None]
"""Takes an event, in the loop's thread, without waiting."""


SUMMARY_BYTES = 1024
"""The longest summary."""


class Rendezvous(ABC):
    """Used in one asyncio loop. After JobOver it posts nothing but Granted and Asked, until
    close().
    """

    @abstractmethod
    def start(self, post: Post) -> None:
        """Begin to look for the other nodes. What goes wrong from here on ends in a JobOver."""

    @abstractmethod
    def report(self, report: Report) -> None:
        """Tell that none of this node's workers of a round runs any more, and why."""

    @abstractmethod
    def mend(self, number: int, standing: Standing, seconds: float, lost: bool) -> None:
        """Tell how this node stands in round `number`, which its workers are to leave.

        Its workers have run for `seconds` since the round began, and some were lost if `lost`.
        RoundOver and RoundMended follow if all nodes can go on; otherwise RoundClosing or JobOver
        does.
        """

    @abstractmethod
    def note_lasting(self, lasting: Lasting) -> None:
        """Tell whether the workers here can keep their processes when nodes leave or come."""

    @abstractmethod
    def leave(self, outcome: Literal["preempted", "stopped"], code: int, reason: str) -> None:
        """Let this node leave the job; the others may continue.

        JobOver follows with this outcome and code, unless another verdict came first. If this node
        takes part in a round, it follows after the round's report.
        """

    @abstractmethod
    def note_standbys(self, count: int) -> None:
        """Note how many processes wait here to become workers, for those who look at the job."""

    @abstractmethod
    def tell_leader(self, summary: bytes) -> None:
        """Send this to the agent that leads, past the store, with the next heartbeat.

        It replaces what was sent before, and a new leader gets it, too. The leader's agent receives
        it in Summaries. Raise ValueError if it is longer than SUMMARY_BYTES.
        """

    @abstractmethod
    def common_clock(self, at: float) -> CommonClock | None:
        """Return the common clock of all nodes, which is the leader's, at a moment of this node.

        `at` is a time of this node's time.monotonic(). Return None if nothing is known of the
        clock.
        """

    @abstractmethod
    def replace(self, node: str) -> bool:
        """Ask the node of this id to leave the job, and return whether it was asked.

        It is asked as by torshctl drain, but only if this node leads and another waits that can
        take its place.
        """

    @abstractmethod
    async def answer(self, asked: Asked, answer: Answer) -> None:
        """Give what was asked for, as far as the store takes it."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything within a few seconds, also leases, so that no node waits for them."""


def check_summary(summary: bytes) -> bytes:
    """Return the summary unchanged. Raise ValueError if it is too long."""
    if len(summary) > SUMMARY_BYTES:
        raise ValueError(f"a summary of {len(summary)} bytes: at most {SUMMARY_BYTES} are sent")
    return summary
