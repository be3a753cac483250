"""Encodes what a node reports of its ranks' ends, and what is concluded from it, as text. Pure.

A testimony is JSON of at most TESTIMONY_CHARS characters: ranks that are alike are grouped, and
what matters most comes first, so that what does not fit matters least. It comes from another
machine, so whatever does not fit its form, or is about ranks that are not the node's, is ignored.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, get_args

from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.numbers import Numbers
from torshrun.failure.rank_report import End, RankReport
from torshrun.failure.root_cause import MOST_EVIDENCE, Certainty, RootCause
from torshrun.failure.suspect import How, Suspect
from torshrun.failure.trails import Trails
from torshrun.failure.trails import decode as read_trails
from torshrun.text import printable, ranges

TESTIMONY_CHARS = 8000
"""Characters of a testimony or a finding: less than a field of a row may have."""
MOST_RANKS = 1 << 20
"""Ranks of a job."""
_TEXT_CHARS = 400
_MOST_CALLS = 16
_MOST_GROUPS = 8
_LARGEST = 1 << 53
T = TypeVar("T")


# ---- of a node's ranks


def encode(witnesses: Sequence[RankReport], hang: str = "", trails: str = "") -> str:
    """Return the testimony of a node; "" if there is nothing to report.

    `hang` describes the hang in a line, "" if it did not hang; `trails` are its ranks' trails, as
    text.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for each in sorted(witnesses, key=_importance):
        groups[_dumped(_plain(each))].append(each.rank)
    told = [_dumped({"hang": _cut(hang)})] if hang else []
    told += [_dumped({"trails": trails})] if trails else []
    left = TESTIMONY_CHARS - 2 - sum(map(len, told))
    for text, ranks in groups.items():
        entry = f'{{"ranks":"{",".join(ranges(frozenset(ranks)))}",{text[1:]}'
        left -= len(entry) + 1
        if left < 0:
            break
        told.append(entry)
    return f"[{','.join(told)}]" if told else ""


def _importance(witness: RankReport) -> tuple[int, float, int]:
    first = not (witness.is_own or witness.is_frozen)
    return first + (witness.end != "failed"), witness.at, witness.rank


def _plain(witness: RankReport) -> Mapping[str, Any]:
    """Return the facts that are not as they mostly are.

    Moments and places of ranks that only followed are left out, as these ranks could otherwise not
    be grouped.
    """
    own = witness.is_own
    reading = witness.reading
    facts = {
        "end": witness.end,
        "how": witness.how,
        "where": witness.where if own else "",
        "at": round(witness.at, 3) if own else 0.0,
        "kind": reading.kind,
        "why": reading.why if own else "",
        "advice": reading.advice if own else "",
        "unsure": witness.is_unsure and own,
        "said": witness.said if own else "",
        "alike": witness.alike if own else "",
        "blame": _blame(witness.blame) if witness.blame else None,
        "call": witness.call,
        "standing": _standing(witness.standing) if witness.standing else None,
        "versions": witness.versions,
        "thread": witness.thread,
        "warning": witness.warning,
        "numbers": _numbers(witness.numbers) if witness.numbers else None,
        "alone": witness.looks_alone,
        "child": witness.child,
        "handles": witness.handles,
        "awaits": witness.awaits,
        "holder": witness.holder + 1,
        "rival": witness.rival + 1,
        "mutters": _blame(witness.mutters) if witness.mutters else None,
        "unmade": witness.unmade,
        "removed": witness.removed,
        "logged": witness.logged,
        "frozen": witness.is_frozen,
        "deaf": witness.is_deaf,
        "busy": witness.is_busy,
        "hung": witness.hung,
    }
    return _kept(facts)


def _blame(blame: Suspect) -> Mapping[str, Any]:
    calls = {str(rank): call for rank, call in [*blame.calls.items()][:_MOST_CALLS]}
    facts = {"how": blame.how, "ranks": list(blame.ranks), "op": blame.op, "calls": calls}
    sizes = {"came": blame.came, "room": blame.room}
    return _kept({**facts, "text": blame.text, "weak": blame.weak, **sizes})


def _numbers(numbers: Numbers) -> Mapping[str, Any]:
    facts = {"form": numbers.form, "finite": numbers.finite, "line": numbers.line}
    return _kept({**facts, "grows": numbers.grows})


def _standing(at: BlockedAt) -> Mapping[str, Any]:
    entered = {str(group): number for group, number in [*at.entered.items()][:_MOST_GROUPS]}
    facts = {"call": at.call, "full": at.full, "place": at.place, "line": at.line}
    more = {"waits_for": at.waits_for, "last": at.last, "group": at.group, "cleanup": at.cleanup}
    in_mesh = {"mesh": at.mesh, "doing": at.doing, "awaited": at.awaited + 1, "locks": at.locks}
    in_mesh["instead"] = at.instead + 1
    return _kept({**facts, **more, **in_mesh, "sequence": at.sequence, "entered": entered})


def _kept(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    cut = {name: _cut(value) for name, value in facts.items()}
    return {name: value for name, value in cut.items() if value or (value == 0 and name == "group")}


def _cut(value: Any) -> Any:
    return value[:_TEXT_CHARS] if isinstance(value, str) else value


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def decode(text: str, ranks: range, node: int, host: str = "") -> tuple[RankReport, ...]:
    """Return what was reported of `ranks`, those of the node `node`; () if it makes no sense."""
    groups = _loaded(text)
    found: dict[int, RankReport] = {}
    for facts in groups if isinstance(groups, list) else ():
        for witness in _witnesses(facts, ranks, node):
            where = witness.where or (f"host {host}" if host else "")
            found.setdefault(witness.rank, replace(witness, where=where))
    return tuple(found[rank] for rank in sorted(found))


def decode_hang(text: str) -> str:
    """Return the hang that a testimony reports, in a line; "" is none."""
    groups = _loaded(text)
    first = groups[0] if isinstance(groups, list) and groups else None
    return _attempt(lambda: _text(first, "hang")) or "" if isinstance(first, dict) else ""


def decode_trails(text: str, ranks: range) -> Trails | None:
    """Return the trails of `ranks` in a testimony; None if there are none that make sense."""
    groups = _loaded(text)
    for facts in groups[:2] if isinstance(groups, list) else ():
        if isinstance(facts, dict) and isinstance(facts.get("trails"), str):
            return read_trails(facts["trails"], ranks)
    return None


def _loaded(text: str) -> object:
    try:
        return json.loads(text) if 0 < len(text) <= 2 * TESTIMONY_CHARS else None
    except (ValueError, RecursionError):
        return None


def _witnesses(facts: object, ranks: range, node: int) -> Iterable[RankReport]:
    if not isinstance(facts, dict):
        return
    try:
        named = _among(_text(facts, "ranks"), ranks)
        end, kind = _one_of(End, facts["end"]), Kind(facts["kind"])
        blame, standing, mutters = map(facts.get, ("blame", "standing", "mutters"))
        numbers = facts.get("numbers")
        for rank in named:
            yield RankReport(
                rank=rank,
                node=node,
                end=end,
                how=_text(facts, "how"),
                where=_text(facts, "where"),
                at=_number(facts.get("at", 0.0)),
                reading=Diagnosis(kind, _text(facts, "why"), _text(facts, "advice")),
                is_unsure=facts.get("unsure") is True,
                said=_text(facts, "said"),
                alike=_text(facts, "alike"),
                blame=None if blame is None else _read_blame(blame),
                call=_text(facts, "call"),
                standing=None if standing is None else _read_standing(standing),
                versions=_text(facts, "versions"),
                thread=_text(facts, "thread"),
                warning=_text(facts, "warning"),
                numbers=None if numbers is None else _read_numbers(numbers),
                looks_alone=facts.get("alone") is True,
                child=_text(facts, "child"),
                handles=_text(facts, "handles"),
                awaits=_text(facts, "awaits"),
                holder=_count(facts.get("holder", 0)) - 1,
                rival=_count(facts.get("rival", 0)) - 1,
                mutters=None if mutters is None else _read_blame(mutters),
                unmade=_text(facts, "unmade"),
                removed=_text(facts, "removed"),
                logged=_text(facts, "logged"),
                is_frozen=facts.get("frozen") is True,
                is_deaf=facts.get("deaf") is True,
                is_busy=facts.get("busy") is True,
                hung=_text(facts, "hung"),
            )
    except (ValueError, TypeError, KeyError, AttributeError):
        return


def _among(text: str, allowed: range) -> Iterable[int]:
    """Yield the numbers of runs like "0-3,5" that are allowed, without creating the others."""
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if found is None:
            raise ValueError
        first, last = int(found[1]), int(found[2] or found[1])
        yield from range(max(first, allowed.start), min(last + 1, allowed.stop))


def _read_blame(facts: Mapping[str, Any]) -> Suspect:
    calls = [*facts.get("calls", {}).items()][:_MOST_CALLS]
    return Suspect(
        how=_one_of(How, facts["how"]),
        ranks=tuple(_rank(rank) for rank in facts.get("ranks", ())),
        op=_text(facts, "op"),
        calls={_rank(int(rank)): printable(str(call)[:_TEXT_CHARS]) for rank, call in calls},
        text=_text(facts, "text"),
        weak=facts.get("weak") is True,
        came=_count(facts.get("came", 0)),
        room=_count(facts.get("room", 0)),
    )


def _read_numbers(facts: Mapping[str, Any]) -> Numbers:
    return Numbers(
        form=_text(facts, "form"),
        finite=_count(facts.get("finite", 0)),
        line=_text(facts, "line"),
        grows=facts.get("grows") is True,
    )


def _read_standing(facts: Mapping[str, Any]) -> BlockedAt:
    entered = [*facts.get("entered", {}).items()][:_MOST_GROUPS]
    return BlockedAt(
        call=_text(facts, "call"),
        full=_text(facts, "full"),
        place=_text(facts, "place"),
        line=_text(facts, "line"),
        waits_for=_text(facts, "waits_for"),
        cleanup=_text(facts, "cleanup"),
        last=_text(facts, "last"),
        group=_count(facts.get("group", -1)),
        sequence=_count(facts.get("sequence", 0)),
        mesh=_text(facts, "mesh"),
        doing=_text(facts, "doing"),
        locks=_text(facts, "locks"),
        instead=_count(facts.get("instead", 0)) - 1,
        awaited=_count(facts.get("awaited", 0)) - 1,
        entered={_count(int(group)): _count(number) for group, number in entered},
    )


def _text(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name, "")
    if not isinstance(value, str):
        raise TypeError
    return printable(value[: 4 * _TEXT_CHARS if name == "ranks" else _TEXT_CHARS])


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TypeError
    return float(value)


def _count(value: object) -> int:
    if type(value) is not int or not -1 <= value < _LARGEST:
        raise TypeError
    return value


def _rank(value: object) -> int:
    if type(value) is not int or not 0 <= value < MOST_RANKS:
        raise TypeError
    return value


def _one_of(choices: Any, value: object) -> Any:
    if value not in get_args(choices):
        raise ValueError
    return value


# ---- findings


def encode_finding(finding: RootCause) -> str:
    """Return a finding as text, for all nodes; "" if the ranks that it names do not fit."""
    facts: dict[str, Any] = {
        "ranks": ",".join(ranges(frozenset(finding.ranks))),
        "nodes": ",".join(ranges(frozenset(finding.nodes))),
        "certainty": finding.certainty,
        "kind": finding.reading.kind,
        "why": finding.reading.why,
        "advice": finding.reading.advice,
        "how": finding.how,
        "evidence": list(finding.evidence),
    }
    while len(text := _dumped(facts)) > TESTIMONY_CHARS and facts["evidence"]:
        facts["evidence"].pop()
    return text if len(text) <= TESTIMONY_CHARS else ""


def decode_finding(text: str) -> RootCause | None:
    """Return the finding in `text`; None if it has none."""
    return _attempt(lambda: _read_finding(_loaded(text)))


def _read_finding(facts: object) -> RootCause | None:
    if not isinstance(facts, dict) or not isinstance(facts["evidence"], list):
        return None
    evidence = facts["evidence"][:MOST_EVIDENCE]
    return RootCause(
        ranks=_listed(facts, "ranks"),
        nodes=_listed(facts, "nodes"),
        certainty=_one_of(Certainty, facts["certainty"]),
        reading=Diagnosis(Kind(facts["kind"]), _text(facts, "why"), _text(facts, "advice")),
        how=_text(facts, "how"),
        evidence=tuple(printable(line[:_TEXT_CHARS]) for line in evidence),
    )


def _listed(facts: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = set(islice(_among(_text(facts, name), range(MOST_RANKS)), MOST_RANKS))
    return tuple(sorted(found))


def _attempt(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
