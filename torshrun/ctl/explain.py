"""Implements torshctl explain: says what is wrong with a job, with evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from torsh_runtime.monitoring.flight import Suspicion, culprit, first_missed
from torsh_runtime.monitoring.layout import MESSAGES, Operation
from torshrun.ctl import recorded, stacks
from torshrun.ctl.places import Asking, Unfit, jobs_here
from torshrun.ctl.recorded import Recorded
from torshrun.ctl.stacks import Stands
from torshrun.ctl.verdict import MOST_RANKS, Verdict, as_object, in_words
from torshrun.failure.blocked_at import from_stack
from torshrun.failure.exported_reports import decode, decode_finding, decode_hang
from torshrun.failure.graph import find as judge
from torshrun.failure.rank_report import RankReport
from torshrun.failure.root_cause import RootCause
from torshrun.failure.trails import Concluded, Node, conclude
from torshrun.health.accounts import Account, Kept, load_newest
from torshrun.health.recordings import trails_of
from torshrun.text import format_ranks

_WRONG = 1
_WELL = "exit code 0"


def show(place: str, asking: Asking, *, as_json: bool) -> int:
    """Print the verdict and return the exit code: 0 if nothing is wrong, else 1."""
    verdict = explain(place, asking)
    click.echo(json.dumps(as_object(verdict)) if as_json else "\n".join(in_words(verdict)))
    return 0 if verdict.wrong == "nothing" else _WRONG


def explain(place: str, asking: Asking) -> Verdict:
    """Judge a run, a job of this host (by pid), or the files kept of a job that has ended.

    Raises Unfit if there is nothing to judge, and StoreError if the store cannot be reached.
    """
    if asking.is_run(place):
        answered = asking.ask(place, ["records", "stacks"])
        found = recorded.of_answers(place, answered["records"])
        stood = stacks.of_answers(place, *answered["stacks"])
        silent = [*dict.fromkeys([*found.silent, *stood.silent])]
        return of_running(found._replace(silent=silent), stood.ranks)
    if place.isdecimal():
        (job,) = jobs_here(place)
        return of_running(recorded.of_job(job), stacks.of_job(job).ranks)
    return of_kept(Path(place))


def nodes_of(found: Recorded) -> list[Node]:
    return [Node(dump.host, trails_of(dump)) for dump in found.dumps]


# ---- a running job


def of_running(found: Recorded, stood: Mapping[int, Stands]) -> Verdict:
    """Judge a running job by what its ranks have recorded and where they are blocked."""
    nodes = nodes_of(found)
    proved = conclude(nodes)
    first = proved.culprit
    ended = {rank: each for rank, each in stood.items() if each.ended}
    dead = {
        rank: stacks.manner(each)
        for rank, each in ended.items()
        if each.ended != _WELL or (first and rank in first.ranks)
    }
    held = {rank: stacks.manner(each) for rank, each in stood.items() if each.state in ("T", "t")}
    if first and first.kind != "mismatch" and -first.since < recorded.WAITED and not (dead or held):
        first, proved = None, proved._replace(suspicions=())
    wrong, ranks, headline = _wrong_now(first, proved, dead, held)
    unknown = _unknown(nodes, stood)
    is_open = unknown or (first and _is_open(first, nodes))
    lines = [f"{format_ranks(unknown)}: no node that answered has any of these"] if unknown else []
    verdict = _blank(found, proved, nodes)._replace(
        state="running",
        wrong=wrong,
        ranks=ranks,
        certainty="undecided" if is_open else "likely",
        silent=[*found.silent, *lines],
        headline=headline or _progress(nodes),
        advice="" if any(found.operations.values()) else recorded.UNSEEN,
        frames={rank: _frame(each.stack) for rank, each in stood.items() if _frame(each.stack)},
    )
    told = {rank: stacks.manner(stood[rank]) for rank in ranks[:MOST_RANKS] if rank in stood}
    states = [f"rank {rank} {how}" for rank, how in {**told, **dead, **held}.items() if how]
    verdict = verdict._replace(evidence=[*states, *proved.lines])
    return verdict if wrong == "nothing" else _with_call(verdict, first, nodes)


def _unknown(nodes: Sequence[Node], stood: Mapping[int, Stands]) -> Sequence[int]:
    """Return the ranks that the default group includes but of which nothing is known."""
    held = [one for node in nodes for one in node.trails.operations.values()]
    size = max((each.ranks for one in held for each in one if not each.group), default=0)
    return sorted({*range(size)}.difference(stood, *(node.trails.operations for node in nodes)))


def _is_open(first: Suspicion, nodes: Sequence[Node]) -> bool:
    """Return whether the ranks that others wait for also wait, for a message or for each other."""
    if first.kind != "missing":
        return first.kind == "crosswise"
    held = [node.trails.operations.get(rank, ()) for node in nodes for rank in first.ranks]
    return any(
        each.state == "running" and each.operation in MESSAGES for one in held for each in one
    )


def _wrong_now(
    first: Suspicion | None,
    proved: Concluded,
    dead: Mapping[int, str],
    held: Mapping[int, str],
) -> tuple[str, Sequence[int], str]:
    """Return what is wrong, with which ranks, and a headline. It is empty if nothing is wrong."""
    if held:
        return "stopped", sorted(held), _together(held)
    if dead:
        return "dead", sorted(dead), _together(dead)
    if first is None:
        return "nothing", (), ""
    wrong = "mismatch" if first.kind == "mismatch" else "waiting"
    return wrong, first.ranks, proved.lines[0]


def _together(ranks: Mapping[int, str]) -> str:
    """Describe ranks in the same condition together: "ranks 0-1 have ended: exit code 1"."""
    verbs = {"has ": "have ", "is ": "are ", "waits ": "wait "}
    manners: dict[str, list[int]] = {}
    for rank, how in sorted(ranks.items()):
        manners.setdefault(how, []).append(rank)
    told = [
        how if len(alike) == 1 else re.sub(r"^\w+ ", lambda verb: verbs.get(verb[0], verb[0]), how)
        for how, alike in manners.items()
    ]
    whose = map(format_ranks, manners.values())
    return "; ".join(f"{who} {how}" for who, how in zip(whose, told, strict=True))


def _progress(nodes: Sequence[Node]) -> str:
    held = [each for node in nodes for each in node.trails.operations.values() if each]
    steps = [s.step for node in nodes for s in node.trails.stands.values() if s.step is not None]
    step = f"step {max(steps)}, " if steps else ""
    if not held:
        return f"nothing is known to be wrong: {step}no operation is recorded"
    latest = max(each[-1].entered for each in held)
    return f"nothing is wrong: {step}the last operation began {max(-latest, 0):.1f} s ago"


def _frame(stack: str) -> str:
    standing = from_stack(stack) if stack else None
    return standing.place if standing else ""


# ---- a job that has ended


def of_kept(folder: Path) -> Verdict:
    """Judge the newest attempt below `folder` of which anything was kept.

    Raises Unfit if nothing was kept.
    """
    accounts, kept = _load(folder)
    found = _recorded(folder, accounts)
    nodes = nodes_of(found)
    proved = conclude(nodes)
    finding = next(filter(None, map(decode_finding, kept)), None) or _judged(accounts, proved)
    verdict = _blank(found, proved, nodes)._replace(state="ended", wrong="failed")
    stacks_of = {rank: text for each in accounts for rank, text in each.stacks.items()}
    frames = {rank: _frame(text) for rank, text in stacks_of.items() if _frame(text)}
    verdict = verdict._replace(frames=frames, evidence=proved.lines)
    if finding is not None:
        evidence = [*_unlike(proved.lines, finding.evidence)]
        verdict = verdict._replace(
            ranks=finding.ranks,
            nodes=finding.nodes,
            certainty=finding.certainty,
            headline=finding.headline,
            kind=str(finding.reading.kind),
            evidence=[*filter(None, [finding.reading.why]), *evidence],
            advice=finding.reading.advice,
        )
    elif proved.culprit is None:
        return verdict._replace(wrong="nothing", headline="its workers were stopped; none failed")
    else:
        verdict = verdict._replace(ranks=proved.culprit.ranks, headline=proved.lines[0])
    on_nodes = [rank for each in accounts if each.node in verdict.nodes for rank in each.ranks]
    about = verdict._replace(ranks=(*verdict.ranks, *on_nodes))
    return _with_call(about, _about(proved, about.ranks), nodes)._replace(ranks=verdict.ranks)


def _load(folder: Path) -> Kept:
    try:
        kept = load_newest(folder)
    except OSError as error:
        raise Unfit(f"cannot read {folder}: {error.strerror}") from None
    if not kept.accounts:
        raise Unfit(
            f"there is no record of a failure below {folder}: torshrun keeps it where a job fails "
            "or hangs and has a --log-dir"
        )
    return kept


def _recorded(folder: Path, accounts: Sequence[Account]) -> Recorded:
    """Return what the ranks of this round had recorded. It is empty if they recorded nothing."""
    newest = accounts[-1]
    with suppress(Unfit):
        found = recorded.kept(folder)
        whose = {(dump.run_id, dump.round) for dump in found.dumps}
        if whose == {(newest.run_id, newest.round)}:
            return found
    hosts = ", ".join(dict.fromkeys(each.host for each in accounts))
    return Recorded(f"run {newest.run_id}, attempt {newest.round}, on {hosts}", ())


def _unlike(lines: Sequence[str], more: Sequence[str]) -> Iterator[str]:
    """Yield all lines, but only the first of those that differ only in seconds."""
    seen = set()
    for line in (*lines, *more):
        timeless = _SECONDS.sub("", line)
        if timeless not in seen:
            seen.add(timeless)
            yield line


_SECONDS = re.compile(r"[0-9.]+ s\b")


def _judged(accounts: Sequence[Account], proved: Concluded) -> RootCause | None:
    """Judge from each node's testimony, if no node kept a finding about all of them."""
    witnesses = [
        replace(witness, turn=turn)
        for turn, each in enumerate(accounts)
        for witness in decode(each.testimony, each.ranks, each.node, each.host)
    ]
    hangs = [decode_hang(each.testimony) for each in accounts]
    return judge(_once(witnesses), (), next(filter(None, hangs), ""), proved)


def _once(witnesses: Sequence[RankReport]) -> list[RankReport]:
    return [*{each.rank: each for each in reversed(witnesses)}.values()][::-1]


def _about(proved: Concluded, ranks: Sequence[int]) -> Suspicion | None:
    """Return the suspicion about `ranks`, or the first one if no rank is at fault."""
    mine = [each for each in proved.suspicions if {*ranks} & {*each.ranks}]
    return culprit(mine if ranks else proved.suspicions)


# ---- for both


def _blank(found: Recorded, proved: Concluded, nodes: Sequence[Node]) -> Verdict:
    stands = {rank: each for node in nodes for rank, each in node.trails.stands.items()}
    return Verdict(
        job=found.name,
        state="",
        wrong="nothing",
        ranks=(),
        nodes=(),
        certainty="likely",
        headline="",
        operation=None,
        called={},
        since=None,
        evidence=(),
        advice="",
        kind="",
        stands=stands,
        frames={},
        silent=found.silent,
        groups=proved.told.groups,
        members=_members(nodes),
    )


def _members(nodes: Sequence[Node]) -> Mapping[int, Sequence[int]]:
    found: dict[int, set[int]] = {}
    for node in nodes:
        for rank, held in node.trails.operations.items():
            for group in {each.group for each in held}:
                found.setdefault(group, set()).add(rank)
    return {group: sorted(ranks) for group, ranks in found.items()}


def _with_call(verdict: Verdict, first: Suspicion | None, nodes: Sequence[Node]) -> Verdict:
    """Add the operation that the verdict is about.

    That is the operation that the culprits are inside, as where one died there or its network
    broke. If ranks did not come, it is the first collective that they missed.
    """
    records = {rank: held for node in nodes for rank, held in node.trails.operations.items()}
    own = _not_left({rank: records.get(rank, ()) for rank in verdict.ranks})
    if first is None or (first.kind == "missing" and own):
        inside = own or _not_left(records)
        since = max(-inside.entered, 0.0) if inside else None
        return verdict._replace(operation=inside, since=since)
    since, operation = max(-first.since, 0.0), first.operation
    if first.kind == "missing" and operation.operation not in MESSAGES:
        blamed = [rank for rank in first.ranks if rank in verdict.ranks]
        operation = first_missed(records, blamed or first.ranks) or operation
    return verdict._replace(operation=operation, called=first.last, since=since)


def _not_left(records: Mapping[int, Sequence[Operation]]) -> Operation | None:
    """Return the first operation in program order that one of these ranks has not left."""
    inside = [each for held in records.values() for each in held if each.state != "done"]
    return min(inside, key=lambda each: each.number, default=None)
