"""Decides whether and when to restart workers after a failure, and to admit hosts again. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torshrun.rendezvous.base import Sequel
from torshrun.rendezvous.settings import Settings

LONGEST_PAUSE = 60.0
"""Seconds; the pause doubles up to this."""
STABLE_SECONDS = 300.0
"""Seconds after which a round ends a streak of failures."""
_VARIATION = 0.25
"""Part of it by which a pause varies, so that jobs that failed together do not return together."""
REFUSED = "refused by join()"
"""Description of a failure at the start that no retry changes."""
MOST_LOSSES = 5
"""Number of losses in a row after which a host's nodes are refused."""
REFUSED_SECONDS = 3600.0
"""Seconds for which they are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Holds the job's past, as far as it matters for the next restart."""

    restarts: int = 0
    """Number of restarts of workers after failures."""
    streak: int = 0
    """Number of rounds in a row that failed soon."""
    startup: str = ""
    """Description of the last round's failure at its start; "" if there was none."""


def judge(
    max_restarts: int, history: History, startup: str = "", *, unkillable: bool = False
) -> Sequel:
    """Decide what follows from a failure; `startup` describes it if it was one at the start."""
    if unkillable:
        return "unkillable"
    if not max_restarts:
        return "no budget"
    if startup == REFUSED:
        return "refused"
    if history.restarts >= max_restarts:
        return "budget spent"
    return "same start" if startup and startup == history.startup else "restart"


def following(history: History, startup: str, seconds: float) -> History:
    """Return the history after the failure of a round that lasted `seconds`, and its restart."""
    return History(
        restarts=history.restarts + 1,
        streak=0 if seconds >= STABLE_SECONDS else history.streak + 1,
        startup=startup,
    )


def pause(backoff: float, history: History, chance: float) -> float:
    """Return the seconds to wait before the round that follows this history.

    There is no wait before the first round of a streak, then exponentially more from `backoff` on
    (0: never any), varied by `chance`, which is random and 0 <= chance < 1.
    """
    if history.streak < 2 or not backoff:
        return 0.0
    planned = min(backoff * 2.0 ** min(history.streak - 2, 60), LONGEST_PAUSE)
    return planned * (1 + _VARIATION * (2 * chance - 1))


class Hosts:
    """Holds what a leader saw of hosts in its term, as a value.

    A loss counts if its round had not lasted. The first is free; then the pause before a node of
    that host may join again doubles, as between restarts.
    """

    def __init__(
        self,
        settings: Settings,
        losses: Mapping[str, tuple[History, int, float]] = MappingProxyType({}),
    ) -> None:
        """Hold `losses`.

        For each host they have its history, the last round that lost one of its nodes, and when.
        """
        self._settings = settings
        self._losses = losses

    def lose(self, host: str, number: int, seconds: float, now: float) -> Hosts:
        """Return the value after the loss of a node of the host to round `number`, after `seconds`.

        It counts once for a round.
        """
        history, last, _ = self._losses.get(host, (History(), -1, now))
        if number == last:
            return self
        loss = following(history, "", seconds), number, now
        return Hosts(self._settings, {**self._losses, host: loss})

    def free_at(self, host: str, *, needed: bool) -> float:
        """Return when a node of this host may join; `needed`: there are too few without it."""
        if host not in self._losses:
            return -math.inf
        history, _, last = self._losses[host]
        if history.streak >= MOST_LOSSES and not needed:
            return last + REFUSED_SECONDS
        most = self._settings.join_timeout / 2  # the job must not end for lack of this node
        return last + min(pause(self._settings.interval, history, 0.5), most)

    def why(self, host: str, until: float, now: float) -> str:
        """Return why nodes of the host are held back until then."""
        return (
            f"the host was lost {self._losses[host][0].streak} times in a row soon after it had "
            f"joined; its nodes are taken again in {math.ceil(until - now)} s"
        )
