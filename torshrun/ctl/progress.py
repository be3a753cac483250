"""How far the job has come with what was asked of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torshrun.ctl.picture import NotDone, Picture
from torshrun.rendezvous.rows import NodeRow, SizeWanted


class Progress(NamedTuple):
    done: bool
    text: str
    """What has happened, or what is still waited for; one line for a person."""


def scaled(wanted: SizeWanted, least: int, now: Picture) -> Progress:
    """Whether the job has its new size: `least` nodes or more, and no spare that it would take.
    Raises NotDone when it has ended.
    """
    if now.verdict:
        raise NotDone(f"the job has ended meanwhile: {now.verdict.outcome}, {now.verdict.reason}")
    header = now.header
    size = header.size if header else 0
    missing = max(least, wanted.min_nodes) - len(now.staying)
    if missing > 0:
        return Progress(
            False, f"waiting for {nodes(missing, 'more ')}: start torshrun there. {_where(now)}"
        )
    if now.phase != "running" or size > wanted.max_nodes:
        return Progress(False, f"waiting for the next round. {_where(now)}")
    if size < least or (now.spares and size < wanted.max_nodes):
        return Progress(False, f"{_why_not_larger(now)}. {_where(now)}")
    return Progress(True, _where(now))


def drained(asked: Sequence[NodeRow], before: Picture, now: Picture) -> Progress:
    """Whether these nodes have gone, and the others go on without them."""
    ids = {row.node for row in asked}
    names = ", ".join(sorted(ids))
    here = sorted(ids.intersection(row.node for row in now.present))
    if here:
        return Progress(False, f"waiting for {', '.join(here)} to stop its workers and go")
    if now.verdict:
        return Progress(True, f"{names} left, and the job has ended: {now.verdict.reason}")
    if not now.present:
        return Progress(True, f"{names} left, and nobody is left of the run")
    if not any(map(before.takes_part, asked)):
        return Progress(True, f"{names} left. {_where(now)}")
    if now.phase != "running" or now.round_token == before.round_token:
        return Progress(False, f"{names} left; waiting for the next round. {_where(now)}")
    return Progress(True, f"{names} left. {_where(now)}")


def undone(asked: Sequence[NodeRow], now: Picture) -> Progress:
    """Whether these nodes stay after all. Raises NotDone when they have been told to go."""
    ids = {row.node for row in asked}
    late = ids.difference(row.node for row in now.staying)
    if late:
        names = ", ".join(sorted(late))
        raise NotDone(f"too late: {names} is on its way out; start torshrun there again")
    return Progress(True, f"{', '.join(sorted(ids))} stays")


def stopped(now: Picture) -> Progress:
    """Whether the job has ended and its agents are gone."""
    if now.verdict is None:
        who = "the nodes" if now.nodes else "a node: none is there, or none reaches the store"
        return Progress(False, f"waiting for {who} to end the job")
    if now.present:
        return Progress(False, f"{ended(now)}; waiting for {nodes(len(now.present))} to go")
    return Progress(True, ended(now))


def ended(now: Picture) -> str:
    """How a run that has a verdict ended."""
    assert now.verdict is not None
    return f"run {now.run_id} has ended: {now.verdict.outcome}, {now.verdict.reason}"


def check_drain(asked: Sequence[NodeRow], now: Picture) -> None:
    """Raises NotDone if too few nodes would be left, by which the job would end."""
    rest = [row for row in now.staying if row not in asked]
    least = now.limits[0] if now.limits else 0
    if len(rest) < least:
        raise NotDone(
            f"run {now.run_id} needs {nodes(least)} and would have {len(rest)}, by which it ends. "
            f"Start another node first or lower MIN (torshctl scale); --force drains all the same"
        )


def nodes(count: int, kind: str = "") -> str:
    """ "1 node", "2 nodes", "2 more nodes"."""
    return f"{count} {kind}node{'' if count == 1 else 's'}"


def _where(now: Picture) -> str:
    """Where the job stands, as a sentence without its end."""
    header = now.header
    if header is None:
        return f"No round yet; {nodes(len(now.present))} there"
    if header.phase == "closing":
        return f"Round {header.number} is ending ({header.reason})"
    return f"Round {header.number} runs on {nodes(header.size)}"


def _why_not_larger(now: Picture) -> str:
    if now.holds:
        holding = ", ".join(sorted(now.holds))
        return f"waiting for the next checkpoint, before which {holding} wants no node to be added"
    return f"waiting for the last call, after which {nodes(len(now.spares))} will be let in"
