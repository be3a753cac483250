"""Holds the actions that the leader of a rendezvous may decide on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torshrun.rendezvous.restart import History
from torshrun.rendezvous.rows import VerdictRow
from torshrun.rendezvous.selection import Selection

if TYPE_CHECKING:  # few rounds fail
    pass


@dataclass(frozen=True, slots=True)
class Close:
    """Write that the round is closing."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """Write the next round."""

    number: int
    seating: Selection
    history: History
    finding: str = ""
    """The root cause of the failure of the round before, as text."""
    staying: frozenset[str] = frozenset()
    """Nodes whose workers go on in this round; empty if all workers are started anew."""


@dataclass(frozen=True, slots=True)
class Mend:
    """Write that the round's workers are to leave it, and those that are left go on in the next."""

    reason: str
    at_commit: bool = False
    """True if they are to finish their step first."""


@dataclass(frozen=True, slots=True)
class Mended:
    """Write the next round, of the same nodes: all have left the round before."""

    history: History


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write the round's header again, as this leader's own."""


@dataclass(frozen=True, slots=True)
class ListNodes:
    """Find out who has entered the round that is closing."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """Write how the job ended."""

    verdict: VerdictRow


Action = Close | Form | Mend | Mended | Adopt | ListNodes | Conclude


class Decision(NamedTuple):
    action: Action | None
    """The one thing to do now; decide again when it is done."""
    wake: float = math.inf
    """Time to decide again, if no news comes before."""
    why: str = ""
    """Description for people of what is waited for: "for the last call of nodes, at most 12 s
    more".

    It is "" if only the end of the round is waited for.
    """
