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
    """Represents a heartbeat, which is checked as rows are when it comes in."""

    node: NodeId
    """The sender's node id."""
    round: RoundNumber
    """The round whose workers it runs."""
    token: Token
    """Token of that round; "" if none."""
    number: int
    """Counts the sender's beats to this leader."""
    confirmed: int
    """The last of them that the sender saw an answer to; 0 for none."""
    summary: Summary = b""
    """Bytes that the sender tells the leader besides; b"" is nothing."""


Answer = Literal["granted", "refused", "silent"]
"""granted, refused: by the leader. silent: no answer in time, or no way there."""


class Reply(NamedTuple):
    """Holds the result of a beat."""

    answer: Answer
    exchange: Exchange | None = None
    """Times at which it was sent, answered (by the leader's clock) and the answer came; or None."""


Judge = Callable[[Heartbeat], bool]
"""Decides whether to grant a beat; called in the loop's thread for each one, and never waits."""


class Heartbeats(ABC):
    """Defines this agent's end of the heartbeats. Its endpoint is the one in NodeFacts."""

    @abstractmethod
    def serve(self, judge: Judge | None) -> None:
        """Answer the beats that come in by this judge from now on; None refuses all."""

    @abstractmethod
    async def beat(
        self, node: str, endpoint: str, fence: int, beat: Heartbeat, timeout: float
    ) -> Reply:
        """Send a beat and wait `timeout` seconds at most for its answer; never raises.

        `fence` tells leaders apart: for another one it may connect anew.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give the connections back. What is under way ends with "silent"."""
