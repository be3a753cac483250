"""Which hosts lose their nodes again and again, and how long theirs are held back. Pure."""

from __future__ import annotations

import math

from torshrun.rendezvous.restart import History, following, pause
from torshrun.rendezvous.settings import Settings

MOST_LOSSES = 5
"""After so many in a row a host's nodes are not taken any more, ..."""
REFUSED_SECONDS = 3600.0
"""... for so long."""


class Hosts:
    """What one leader saw in its term. A loss counts if its round had not lasted: the first is
    free, then the pause before a node of that host may join again doubles, as between restarts.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._losses: dict[str, tuple[History, int, float]] = {}
        """For each host what it went through, the last round that lost one of its nodes, when."""

    def lose(self, host: str, number: int, seconds: float, now: float) -> None:
        """A node of it was lost to round `number`, after `seconds`. Counts once for a round."""
        history, last, _ = self._losses.get(host, (History(), -1, now))
        if number != last:
            self._losses[host] = following(history, "", seconds), number, now

    def free_at(self, host: str, *, needed: bool) -> float:
        """When a node of this host may join; `needed`: there are too few without it."""
        if host not in self._losses:
            return -math.inf
        history, _, last = self._losses[host]
        if history.streak >= MOST_LOSSES and not needed:
            return last + REFUSED_SECONDS
        most = self._settings.join_timeout / 2  # the job must not end for want of this node
        return last + min(pause(self._settings.interval, history, 0.5), most)

    def why(self, host: str, until: float, now: float) -> str:
        """Why its nodes are held back until then."""
        return (
            f"the host was lost {self._losses[host][0].streak} times in a row soon after it had "
            f"joined; its nodes are taken again in {math.ceil(until - now)} s"
        )
