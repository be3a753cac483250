"""The Heartbeats port: signs of life that agents send to the leader, past the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from torshrun.health.clocks import Exchange
from torshrun.rendezvous.base import SUMMARY_BYTES
from torshrun.rendezvous.rows import NodeId, RoundNumber, Token

Summary = Annotated[bytes, lambda summary: len(summary) <= SUMMARY_BYTES]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One sign of life, checked as rows are when it comes in."""

    node: NodeId
    """The sender's node id."""
    round: RoundNumber
    """The round whose workers it runs."""
    token: Token
    """That round's token, or ""."""
    number: int
    """Counts the sender's beats to this leader."""
    confirmed: int
    """The last of them that the sender saw an answer to; 0 for none."""
    summary: Summary = b""
    """What the sender tells the leader besides; b"" is nothing."""


Answer = Literal["granted", "refused", "silent"]
"""granted, refused: by the leader. silent: no answer in time, or no way there."""


class Reply(NamedTuple):
    """What came of a beat."""

    answer: Answer
    exchange: Exchange | None = None
    """When it was sent, answered by the leader's clock, and the answer came; None is unknown."""


Judge = Callable[[Heartbeat], bool]
"""Whether to grant a beat; called in the loop's thread for each that comes in, and never waits."""


class Heartbeats(ABC):
    """This agent's end of the heartbeats. Its endpoint is the one in NodeFacts."""

    @abstractmethod
    def serve(self, judge: Judge | None) -> None:
        """Answer the beats that come in by this judge from now on; None refuses all."""

    @abstractmethod
    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        """Send one beat and wait `timeout` seconds at most for its answer; never raises. `fence`
        tells leaders apart: for another one it may connect anew.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give the connections back. What is under way ends with "silent"."""
