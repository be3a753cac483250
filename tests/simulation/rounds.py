"""One round at a time: none begins while workers of another run, and all have the same."""

from __future__ import annotations

from simulation.record import Commit, Record, check

from torshrun.rendezvous import rows
from torshrun.rendezvous.base import NodeAssignment
from torshrun.rendezvous.rows import Header


class Rounds:
    """Judges headers and places."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._places: dict[str, dict[int, tuple[str, NodeAssignment]]] = {}
        self.count = 0
        """How many rounds followed another."""
        self.parked: dict[str, tuple[str, int]] = {}
        """The token and number of the last round that each agent's workers have left."""

    def check(self, commit: Commit) -> None:
        for event in commit.events:
            if self._record.codec.name(event.key) != rows.ROUND:
                continue
            if event.kind == "put":
                header = self._record.codec.read(Header, event)
                check(header is not None, "the header can be read")
                assert header is not None
                self._check_header(header)
            else:  # the run id is free; another job may use it
                running = self._record.rounds_running()
                check(not running, "nobody runs workers of a job that has ended")

    def _check_header(self, header: Header) -> None:
        before = self._record.header
        if before is not None and before.token == header.token:
            again = before.phase == "closing" and header.phase == "open"
            check(not again, f"round {header.number} is closing, and then open again")
            if header.number != before.number:
                self._check_mended(before, header)
            return
        record = self._record
        others = record.rounds_running() - {header.token}
        if header.kept and before is not None:
            self._check_kept(before, header)
            return
        check(not others, f"round {header.number} is formed while workers of {others} run")
        if before is None:
            return
        self.count += 1
        gap = f"round {header.number} follows {before.number} {before.phase}"
        follows = header.number == before.number + 1
        claimed = record.losses and header.number > before.number  # nodes knew of later ones
        check(bool(follows or claimed), gap)
        check(before.phase == "closing", "a round is closing before the next is formed")
        self._check_restarts(before, header)

    def _check_mended(self, before: Header, header: Header) -> None:
        """Nobody is in the round that is over when the next begins, and it is charged once at most:
        not if nobody was lost, and who was to come is gone."""
        self.count += 1
        what = f"round {header.number} follows {before.number} of the same nodes"
        check(header.number == before.number + 1, what)
        check(before.mending and not header.mending, f"{what}, which was not over")
        grown = header.restarts - before.restarts
        check(grown in (0, 1) and header.restarts <= header.max_restarts, f"{what}: charged")
        self._check_all_have_left(before, what)

    def _check_kept(self, before: Header, header: Header) -> None:
        """Nobody is in the round that is over when another of other nodes follows."""
        self.count += 1
        what = f"round {header.number} of other nodes follows {before.number}"
        check(header.number == before.number + 1, what)
        check(before.mending and before.phase == "open", f"{what}, which was not over")
        grown = header.restarts - before.restarts
        check(grown in (0, 1) and header.restarts <= header.max_restarts, f"{what}: charged")
        check(header.since == before.since, f"{what}, and its workers have another key")
        self._check_all_have_left(before, what)

    def _check_all_have_left(self, before: Header, what: str) -> None:
        running, formed = self._record.running, self._record.formed
        live = {agent: token for agent, token in running.items() if token in formed}
        late = [a for a, token in live.items() if self.parked.get(a) != (token, before.number)]
        present = [a for a in late if formed[live[a]] == self._record.losses]
        check(not present, f"{what}, and {present} have not left it")

    def check_left(self, agent: str, left: str, place: NodeAssignment) -> None:
        """An agent's workers begin a round of other nodes."""
        check(self.parked.get(agent) == (left, place.round - 1), f"{agent} has left its round")

    def went_on(self, agent: str, token: str, place: NodeAssignment) -> None:
        """An agent's workers begin a round of the same nodes."""
        check(self.parked.get(agent) == (token, place.round - 1), f"{agent} has left its round")
        known = [each for rank, each in self._places[token].items() if rank == place.node_rank]
        check(known[0][0] == agent, f"{agent} keeps its rank")

    def _check_restarts(self, before: Header, header: Header) -> None:
        """What fails is charged, and nothing else."""
        record = self._record
        outcomes = record.outcomes[before.token]
        failed = "failed" in outcomes.values()
        grown = header.restarts - before.restarts
        mine = {node for node, row in record.nodes.items() if row.token == before.token}
        is_new_job = header.restarts == 0 and not (mine & record.starters[before.token])
        fits = grown == 0 or (grown == 1 and failed) or is_new_job
        check(fits, f"restarts {before.restarts}, then {header.restarts}; outcomes {outcomes}")
        stay = [row for row in record.nodes.values() if row.token == before.token]
        stay = [row for row in stay if row.state == "reported" and record.stays(row.node)]
        stay = [row for row in stay if row.node not in record.vanished]
        charged = grown == 1 or not failed or len(stay) < before.size
        check(charged, f"a failure alone ended round {before.number}, and is not charged")
        most = header.max_restarts
        check(header.restarts <= most, f"{header.restarts} restarts, and {most} at most")

    def started(self, agent: str, token: str, place: NodeAssignment) -> None:
        record = self._record
        if record.formed.get(token) == record.losses and not place.kept:
            others = record.rounds_running() - {token}
            check(not others, f"{agent} starts round {place.round} while those of {others} run")
        places = self._places.setdefault(token, {})
        holder, _ = places.setdefault(place.node_rank, (agent, place))
        check(holder == agent, f"{holder} and {agent} both have rank {place.node_rank}")
        check(0 <= place.node_rank < place.num_nodes, f"{agent} has a rank in the round")
        for _, other in [next(iter(places.values()))]:
            same = (other.num_nodes, other.world_size, other.master_addr, other.restarts)
            mine = (place.num_nodes, place.world_size, place.master_addr, place.restarts)
            check(same == mine, f"all have the same round: {same}, {mine}")
        fits = any(least <= place.num_nodes <= most for least, most in record.limits)
        check(fits, f"{place.num_nodes} nodes are not too few or many")
