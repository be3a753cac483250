"""What must hold at every step, whatever happens."""

from __future__ import annotations

from collections import Counter

from torsh_runtime.store.base import Event
from torshrun.rendezvous import rows
from torshrun.rendezvous.base import Place, Verdict
from torshrun.rendezvous.rows import Header, SizeWanted


class Violation(AssertionError):
    """An invariant does not hold."""


class Invariants:
    """Watches all agents and the store from outside, with one exact clock."""

    def __init__(self, least: int, most: int) -> None:
        self._limits = {(least, most)}
        self.running: Counter[int] = Counter()
        """How many agents run workers of each round."""
        self._places: dict[int, dict[int, tuple[str, Place]]] = {}
        self.verdict: Verdict | None = None
        self.failures = 0
        """How many failures of workers were made."""
        self.rounds = 0
        self.header: Header | None = None

    def on_event(self, event: Event) -> None:
        """A change in the store."""
        if event.kind == "put" and event.key.endswith(rows.ROUND):
            header = rows.decode(Header, event.value)
            self._check(header is not None, "the header can be read")
            if header is not None:
                self._on_header(header)
        elif event.key.endswith(rows.ROUND):
            self._on_end()
        elif event.kind == "put" and event.key.endswith(rows.WANT_SIZE):
            wanted = rows.decode(SizeWanted, event.value)
            if wanted is not None:
                self._limits.add((wanted.min_nodes, wanted.max_nodes))

    def _on_end(self) -> None:
        """The run id is free; another job may use it."""
        self._check(not self.running, "nobody runs workers of a job that has ended")
        self.header = self.verdict = None
        self._places.clear()

    def _on_header(self, header: Header) -> None:
        before, self.header = self.header, header
        if before is None or before.token == header.token:
            return
        self.rounds += 1
        gap = f"round {header.number} follows {before.number} {before.phase}"
        self._check(header.number > before.number, gap)  # of a job that has died some may come back
        self._check(before.phase == "closing", "a round is closing before the next is formed")
        others = [number for number in self.running if number != header.number]
        self._check(not others, f"round {header.number} is formed while workers of {others} run")

    def started(self, agent: str, place: Place, granted: float, now: float) -> None:
        """Workers of a round have been started."""
        self.running[place.round] += 1
        self._check(granted > now, f"{agent} starts workers without a grant")
        others = [number for number in self.running if number != place.round]
        self._check(not others, f"{agent} starts round {place.round} while those of {others} run")
        self._check_place(agent, place)

    def _check_place(self, agent: str, place: Place) -> None:
        places = self._places.setdefault(place.round, {})
        holder, other = places.setdefault(place.node_rank, (agent, place))
        self._check(holder == agent, f"{holder} and {agent} both have rank {place.node_rank}")
        self._check(0 <= place.node_rank < place.num_nodes, f"{agent} has a rank in the round")
        for _, other in [next(iter(places.values()))]:
            same = (other.num_nodes, other.world_size, other.master_addr, other.restarts)
            mine = (place.num_nodes, place.world_size, place.master_addr, place.restarts)
            self._check(same == mine, f"all have the same round: {same}, {mine}")
        fits = any(least <= place.num_nodes <= most for least, most in self._limits)
        self._check(fits, f"{place.num_nodes} nodes are not too few or many")
        self._check(place.restarts <= self.failures, "only failures are counted as restarts")

    def stopped(self, number: int) -> None:
        """An agent's workers have ended."""
        self.running[number] -= 1
        if not self.running[number]:
            del self.running[number]

    def over(self, agent: str, verdict: Verdict) -> None:
        """An agent learnt the job's verdict."""
        first = self.verdict = self.verdict or verdict
        same = (first.outcome, first.code) == (verdict.outcome, verdict.code)
        self._check(same, f"{agent} has another verdict: {verdict}, {first}")

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)
