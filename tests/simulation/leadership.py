"""One leader acts per revision, and only on what stands."""

from __future__ import annotations

from simulation.record import Commit, Record, check

from torsh_runtime.store.base import Compare, Event
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import LeaderRow, NodeRow


class Leadership:
    """Judges who writes what."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def check(self, commit: Commit) -> None:
        if not commit.author:  # a lease has ended, or somebody from outside writes
            return
        for event in commit.events:
            name = self._record.codec.name(event.key)
            if name == rows.LEADER:
                self._check_election(commit.author, event)
            elif name in (rows.ROUND, rows.VERDICT) or name.startswith(rows.PLACES):
                self._check_fences(commit, name)
            elif name.startswith(rows.NODES) and event.kind == "put":
                self._check_row(commit.author, event)

    def _check_election(self, author: str, event: Event) -> None:
        leader = self._record.leader
        if event.kind == "delete":
            mine = leader is None or leader.node == author  # none counts, of an epoch that is over
            check(mine, f"{author} ends the term of {leader}")
            return
        row = self._record.codec.read(LeaderRow, event)
        # What was signed in an epoch that is over counts for nobody.
        check(row is None or row.node == author, f"{author} elects {row}")
        check(leader is None, f"{author} is elected while {leader} leads")

    def _check_fences(self, commit: Commit, name: str) -> None:
        """Of a leader's write."""
        record, author = self._record, commit.author
        leader = record.leader
        check(
            leader is not None and leader.node == author,
            f"{author} writes {name} while {leader} leads",
        )
        assert leader is not None
        codec = record.codec
        for what, revision in (
            (rows.LEADER, leader.revision),
            (rows.ROUND, record.header_revision),
        ):
            fence = Compare(codec.key(what), revision)
            check(fence in commit.compares, f"{author} writes {name} without comparing {what}")

    def _check_row(self, author: str, event: Event) -> None:
        record = self._record
        row, header = record.codec.read(NodeRow, event), record.header
        if row is None:  # signed in an epoch that is over: it counts for nobody
            return
        check(row.node == author, f"{author} writes {event.key}: {row}")
        known = record.nodes.get(author)
        if known is not None and row != known:
            newer = row.sequence > known.sequence
            check(newer, f"{author} writes version {row.sequence} of its row over {known}")
        if row.state != "inside":
            return
        if known is None or (known.state, known.token) != ("inside", row.token):
            open_now = header is not None and (header.phase, header.token) == ("open", row.token)
            check(open_now, f"{author} enters round {row.round}, and the header is {header}")
