"""Who is to blame, from what is known of all ranks: the blame graph. Pure.

A rank that failed and blames nobody is a cause. The others point at ranks, by what their errors
name and by the collectives that they were in; who is pointed at and points at nobody is to blame.
Where that leads in a circle, or to several without more evidence, nobody can tell, and that is
said: it is worse to be sure and wrong.

Moments are compared within a node only, never between nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from torshrun.failure.kinds import Kind, Reading, of_job, of_ranks
from torshrun.failure.witness import Silent, Witness
from torshrun.text import format_ranks

Certainty = Literal["certain", "likely", "undecided"]
"""certain: the facts allow nothing else. likely: something else is possible, and less so.
undecided: one of those named, and it cannot be told which."""
MOST_EVIDENCE = 10
"""Lines of evidence."""
_SHOWN = 8  # of those that it is undecided between


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The root cause of a round's failure, as far as it can be told."""

    ranks: tuple[int, ...] = ()
    """Who is to blame, or, if that is undecided, who may be."""
    nodes: tuple[int, ...] = ()
    """Nodes likewise, by their ranks."""
    certainty: Certainty
    reading: Reading
    how: str = ""
    """How who is to blame ended, in a line; "" is unknown."""
    evidence: tuple[str, ...] = ()
    """What it is concluded from, in lines."""

    @property
    def headline(self) -> str:
        """Who is to blame, and how it ended, in one line."""
        how = self.how or str(self.reading.kind)
        if not self.ranks and not self.nodes:
            return f"no rank is to blame: {how}"
        if self.certainty == "undecided":
            return f"undecided between {self._either}: {how}"
        surely = "most likely " if self.certainty == "likely" else ""
        return f"{self._all} {surely}failed first: {how}"

    @property
    def _all(self) -> str:
        parts = [format_ranks(self.ranks)] if self.ranks else []
        if self.nodes:
            parts.append(format_ranks(self.nodes).replace("rank", "node", 1))
        return " and ".join(parts)

    @property
    def _either(self) -> str:
        who = [f"rank {rank}" for rank in self.ranks] + [f"node {node}" for node in self.nodes]
        shown, more = who[:_SHOWN], len(who) - _SHOWN
        last = f"{more} others" if more > 0 else shown.pop()
        return f"{', '.join(shown)} and {last}" if shown else last


class _Verdict(NamedTuple):
    ranks: Collection[int]
    certainty: Certainty
    reading: Reading
    nodes: Collection[int] = ()


def find(
    witnesses: Sequence[Witness], silent: Sequence[Silent] = (), hang: str = ""
) -> Finding | None:
    """The root cause; None if nothing failed. `hang`: in a line, if there was no progress."""
    case = _Case(tuple(witnesses), tuple(silent), hang)
    if not case.failed and not silent and not hang:
        return None
    verdict = next(filter(None, (judge(case) for judge in _JUDGES)))
    return Finding(
        ranks=tuple(sorted(verdict.ranks)),
        nodes=tuple(sorted(verdict.nodes)),
        certainty=verdict.certainty,
        reading=verdict.reading,
        how=_manner(case, verdict),
        evidence=_evidence(case, verdict),
    )


@dataclass(frozen=True)
class _Case:
    """What is to be judged, and what follows at once from it."""

    witnesses: tuple[Witness, ...]
    silent: tuple[Silent, ...]
    hang: str

    @cached_property
    def by_rank(self) -> Mapping[int, Witness]:
        return {each.rank: each for each in self.witnesses}

    @cached_property
    def failed(self) -> list[Witness]:
        return [each for each in self.witnesses if each.end == "failed"]

    @cached_property
    def own(self) -> list[Witness]:
        """Those whose failures are their own."""
        return [each for each in self.witnesses if each.is_own]

    @cached_property
    def followers(self) -> list[Witness]:
        """Those that failed and blame somebody."""
        return [each for each in self.failed if each.blame]

    @cached_property
    def waiting(self) -> list[Witness]:
        """Those that stood in a collective, or in vain had."""
        return [each for each in self.witnesses if each.end != "done" and _call(each)]

    @cached_property
    def away(self) -> list[Witness]:
        """Those that ran and stood outside of any collective."""
        return [
            each
            for each in self.witnesses
            if each.end == "stopped" and each.standing and not each.standing.call
        ]

    @cached_property
    def edges(self) -> Mapping[int, set[int]]:
        """Whom each rank points at."""
        found: dict[int, set[int]] = defaultdict(set)
        for each in self.followers:
            if each.blame and not each.blame.weak:
                found[each.rank] |= {*each.blame.ranks} - {each.rank}
        for rank, behind in _pointed_at_by_collectives(self.witnesses):
            found[rank] |= behind
        return {rank: whom for rank, whom in found.items() if whom}

    @cached_property
    def named(self) -> set[int]:
        """Ranks that somebody points at."""
        return set().union(*self.edges.values())


def _call(witness: Witness) -> str:
    """The collective that it waited in, by its name."""
    if witness.standing and witness.standing.call:
        return witness.standing.call
    return witness.blame.op if witness.blame else ""


def _pointed_at_by_collectives(witnesses: Sequence[Witness]) -> Iterable[tuple[int, set[int]]]:
    """Who is in an operation of a group points at those of it that have not entered it."""
    stands = [(each.rank, each.standing) for each in witnesses if each.standing]
    inside = [(rank, at) for rank, at in stands if at.full and at.group >= 0 and at.sequence]
    behind = {
        (at.group, at.sequence): {
            rank for rank, other in stands if other.entered.get(at.group, at.sequence) < at.sequence
        }
        for _, at in inside
    }
    for rank, at in inside:
        yield rank, behind[at.group, at.sequence]


# ---- judges: each gives a verdict, or leaves it to the next


def _own_failure(case: _Case) -> _Verdict | None:
    """Who failed and blames nobody."""
    if not case.own:
        return None
    classes = _alike(case.own)
    chosen = _outstanding(case, classes)
    if chosen is None:
        ranks = [each.rank for found in classes for each in found]
        return _Verdict(ranks, "undecided", classes[0][0].reading)
    doubts = len(classes) > 1 or case.silent or _others_are_pointed_at(case)
    ranks = [each.rank for each in chosen]
    return _Verdict(ranks, "likely" if doubts else "certain", chosen[0].reading)


def _alike(witnesses: Iterable[Witness]) -> list[list[Witness]]:
    """Those that failed alike together, in the order in which they did."""
    classes: dict[str, list[Witness]] = defaultdict(list)
    for each in sorted(witnesses, key=lambda each: (each.node, each.at)):
        classes[each.alike or f"rank {each.rank}"].append(each)
    return list(classes.values())


def _outstanding(case: _Case, classes: list[list[Witness]]) -> list[Witness] | None:
    """The failures among others that those may follow from; None if several are as likely."""
    if len(classes) == 1:
        return classes[0]
    pointed_at = [found for found in classes if any(each.rank in case.named for each in found)]
    if len(pointed_at) == 1:
        return pointed_at[0]
    strongest = max(classes, key=_strength)
    rivals = [found for found in classes if found is not strongest]
    if any(_strength(found) == _strength(strongest) for found in rivals):
        return None
    first = {each.node: each.at for each in reversed(strongest)}
    came_before = (each.at < first.get(each.node, each.at) for found in rivals for each in found)
    return None if any(came_before) else strongest


def _strength(alike: Sequence[Witness]) -> int:
    return max(each.strength for each in alike)


def _others_are_pointed_at(case: _Case) -> bool:
    own = {each.rank for each in case.own}
    return bool(_ends_of_blame(case) - own)


def _frozen(case: _Case) -> _Verdict | None:
    """Whose process stood still."""
    frozen = {each.rank for each in case.witnesses if each.is_frozen}
    if not frozen:
        return None
    others = [each for each in case.witnesses if each.rank not in frozen]
    waited = all(each.end == "done" or each.blame or _call(each) for each in others)
    return _Verdict(frozen, "certain" if waited else "likely", _told(case, Kind.FROZEN, frozen))


def _disagreement(case: _Case) -> _Verdict | None:
    """Ranks that called different things."""
    claims = [each for each in case.followers if each.blame and each.blame.how == "mismatch"]
    if not claims:
        return None
    calls = {rank: call for each in claims if each.blame for rank, call in each.blame.calls.items()}
    noted = {each.rank: each.call for each in case.witnesses if each.call}
    for known in (calls, _last_calls(case, calls.keys()), noted):
        odd = _odd_one(known)
        if odd is not None:
            return _Verdict({odd}, "likely", _differ({odd}, known))
    named = set(calls)
    if not calls:
        named = {rank for each in claims if each.blame for rank in each.blame.ranks}
        named |= {each.rank for each in claims if each.blame and each.blame.ranks}
    if len(named) == 1:
        return _Verdict(named, "likely", _differ(named, calls))
    everybody = {each.rank for each in case.witnesses}
    said = calls or noted or {each.rank: _call(each) for each in claims}
    return _Verdict(named or everybody, "undecided", _differ(named, said))


def _last_calls(case: _Case, ranks: Collection[int]) -> Mapping[int, str]:
    """What ranks noted of the collective that these ranks had entered last."""
    stands = {each.rank: each.standing for each in case.witnesses if each.standing}
    places = {(at.group, at.sequence) for rank, at in stands.items() if rank in ranks and at.last}
    return {rank: at.last for rank, at in stands.items() if (at.group, at.sequence) in places}


def _odd_one(calls: Mapping[int, str]) -> int | None:
    """The only rank of at least three whose call differs from all others', which are the same."""
    counts = Counter(calls.values())
    odd = [rank for rank, call in calls.items() if counts[call] == 1]
    return odd[0] if len(calls) >= 3 and len(counts) == 2 and len(odd) == 1 else None


def _pointed_at(case: _Case) -> _Verdict | None:
    """Who is pointed at, and points at nobody."""
    ends = _ends_of_blame(case)
    if not ends:
        return None
    lost = [each for each in case.silent if ends & {*each.ranks}]
    if lost:
        return _lost(case, lost, "likely" if ends - _ranks_of(lost) else "certain")
    done = {rank for rank in ends if _end(case, rank) == "done"}
    if done == ends:
        all_done = [each for each in case.witnesses if each.end == "done"]
        is_usual = len(all_done) > len(case.failed)  # then others may have done too much
        certainty: Certainty = "likely" if is_usual else "certain"
        return _Verdict(ends, certainty, _told(case, Kind.EARLY_EXIT, ends))
    return _Verdict(ends, "likely", _why_absent(case, ends))


def _ends_of_blame(case: _Case) -> set[int]:
    """Where the chains of blame end: not at ranks that were lost themselves by whom they do not
    say.
    """
    pointing = case.edges.keys() | {each.rank for each in case.followers}
    return case.named - pointing


def _end(case: _Case, rank: int) -> str:
    witness = case.by_rank.get(rank)
    return witness.end if witness else ""


def _circle(case: _Case) -> _Verdict | None:
    """Ranks that point at each other."""
    ranks = _on_circles(case.edges)
    if not ranks:
        return None
    votes = Counter(rank for whom in case.edges.values() for rank in whom)
    (first, most), *rest = votes.most_common(2)
    if most > 1 and (not rest or rest[0][1] < most) and first in ranks:
        return _Verdict({first}, "likely", _told(case, Kind.MISSING, {first}))
    calls = {rank: _call(case.by_rank[rank]) for rank in ranks if rank in case.by_rank}
    return _mutual(case, ranks, calls)


def _on_circles(edges: Mapping[int, set[int]]) -> set[int]:
    """The ranks that are left when those that nobody points at are left out, again and again, and
    those that point at nobody.
    """
    pointers = Counter(rank for whom in edges.values() for rank in whom)
    left = set(edges)
    free = [rank for rank in left if not pointers[rank]]
    while free:
        rank = free.pop()
        left.discard(rank)
        for other in edges[rank]:
            pointers[other] -= 1
            if not pointers[other] and other in left:
                free.append(other)
    return {rank for rank in left if edges[rank] & left}


def _mutual(case: _Case, ranks: Collection[int], calls: Mapping[int, str]) -> _Verdict:
    """Of ranks that wait for each other, in these calls."""
    names = set(calls.values())
    who, what = format_ranks(ranks), _listed(calls)
    if len(names) > 1 and not names <= _MESSAGES:
        return _Verdict(ranks, "undecided", _differ(ranks, calls))
    alike = _do_the_same(case, ranks)
    if alike and not names <= _MESSAGES:
        return _Verdict(ranks, "undecided", of_ranks(Kind.NETWORK, who, "", "", _IN_VAIN))
    deadlock = of_ranks(Kind.DEADLOCK, who, "", "each other", what)
    return _Verdict(ranks, "likely" if alike else "undecided", deadlock)


_IN_VAIN = "they were in the same collective, and what they send does not arrive, or too slowly"


def _do_the_same(case: _Case, ranks: Collection[int]) -> bool:
    """Whether all stood at one place in the program, having made the same calls before."""
    found = [case.by_rank[rank].standing for rank in ranks if rank in case.by_rank]
    entered = [standing.entered for standing in found if standing]
    places = {standing.place for standing in found if standing}
    return len(places) == 1 and all(each == entered[0] for each in entered)


def _left(case: _Case) -> _Verdict | None:
    """Who ended well while others still needed it."""
    lost = [each for each in case.followers if each.blame and each.blame.how == "lost"]
    done = {each.rank for each in case.witnesses if each.end == "done"}
    if not done or not (lost or (case.followers and not case.away)):
        return None
    return _Verdict(done, "likely", _told(case, Kind.EARLY_EXIT, done))


def _silent(case: _Case) -> _Verdict | None:
    """Nodes that were lost, if nothing else explains it."""
    if not case.silent:
        return None
    return _lost(case, case.silent, "certain" if len(case.silent) == 1 else "likely")


def _lost(case: _Case, silent: Sequence[Silent], certainty: Certainty) -> _Verdict:
    names = " and ".join(each.name for each in silent)
    why = "; ".join(filter(None, (each.why for each in silent[:1])))
    nodes = [each.node for each in silent if each.node >= 0]
    if all(each.is_unable for each in silent):
        return _Verdict(
            (), certainty, of_job(f"{names} cannot run workers: {why}", Kind.AGENT), nodes
        )
    ends = [each for each in case.followers if each.blame and each.blame.how == "lost"]
    kind = Kind.NODE_LOST if ends else Kind.UNREACHABLE  # whose connections end has ended
    reading = of_ranks(kind, names, "", "", why or "nothing more was heard of it")
    return _Verdict((), certainty, reading, nodes)


def _ranks_of(silent: Iterable[Silent]) -> set[int]:
    return {rank for each in silent for rank in each.ranks}


def _absent(case: _Case) -> _Verdict | None:
    """Who stood outside of the collectives that others waited in."""
    away = {each.rank for each in case.away}
    waits = case.waiting or any(each.blame and each.blame.how == "late" for each in case.followers)
    if not away or not waits:
        return None
    return _Verdict(away, "likely", _why_absent(case, away))


def _why_absent(case: _Case, ranks: Collection[int]) -> Reading:
    """What kept ranks from a collective that others waited in."""
    found = [case.by_rank[rank] for rank in ranks if rank in case.by_rank]
    threads = next((each.thread for each in found if each.thread), "")
    if threads:
        return _told(case, Kind.EXCEPTION, ranks, threads)
    if any(each.is_deaf for each in found):
        return _told(case, Kind.HUNG, ranks, "something in the kernel, in state D")
    awaited = next((each.standing.waits_for for each in found if each.standing), "")
    if awaited == "a lock":
        return _told(case, Kind.DEADLOCK, ranks, awaited)
    return _told(case, Kind.HUNG if awaited else Kind.MISSING, ranks, awaited)


def _elsewhere(case: _Case) -> _Verdict | None:
    """Ranks that waited in different collectives, or for each other."""
    calls = {each.rank: _call(each) for each in case.waiting}
    if len(calls) < 2:
        return None
    odd = _odd_one(calls)
    if odd is not None:
        return _Verdict({odd}, "likely", _differ({odd}, calls))
    late = any(each.blame and each.blame.how == "late" for each in case.followers)
    return _mutual(case, calls, calls) if late or case.hang or len({*calls.values()}) > 1 else None


_MESSAGES = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}


def _weak(case: _Case) -> _Verdict | None:
    """Whose failure may well be its own, although it speaks of others."""
    weak = [each for each in case.followers if each.blame and each.blame.weak]
    return _suspected(case, weak)


def _alone(case: _Case) -> _Verdict | None:
    """Who failed while the others did well."""
    return _suspected(case, case.followers)


def _suspected(case: _Case, suspects: Sequence[Witness]) -> _Verdict | None:
    if not suspects or len(suspects) == len(case.witnesses) > 1:
        return None
    certainty: Certainty = "likely" if len(suspects) == 1 else "undecided"
    reading, ranks = suspects[0].reading, [each.rank for each in suspects]
    if reading.kind is Kind.PEER_LOST:
        why = "no end of another rank explains that"
        reading = of_ranks(Kind.NETWORK, format_ranks(ranks), "", "", why)
    return _Verdict(ranks, certainty, reading)


def _unexplained(case: _Case) -> _Verdict:
    """Nothing tells more."""
    if case.hang:
        return _no_progress(case)
    ranks = [each.rank for each in case.failed]
    certainty: Certainty = "likely" if len(ranks) == 1 else "undecided"
    return _Verdict(ranks, certainty, min(case.failed, key=lambda each: each.at).reading)


def _no_progress(case: _Case) -> _Verdict:
    """Ranks that hang, each by itself: if all do the same it is no rank's fault."""
    ranks = [each.rank for each in case.witnesses if each.end != "done"]
    reading = of_ranks(Kind.HUNG, format_ranks(ranks), "", "", f"something unknown ({case.hang})")
    if len(ranks) == 1:
        return _Verdict(ranks, "likely", reading)
    known = all(each.standing for each in case.witnesses if each.rank in ranks)
    alike = known and _do_the_same(case, ranks) and not case.waiting
    return _Verdict(() if alike else ranks, "likely" if alike else "undecided", reading)


_JUDGES: Sequence[Callable[[_Case], _Verdict | None]] = (
    _own_failure,
    _frozen,
    _disagreement,
    _pointed_at,
    _left,
    _silent,
    _circle,
    _absent,
    _weak,
    _elsewhere,
    _alone,
    _unexplained,
)


# ---- words


def _manner(case: _Case, verdict: _Verdict) -> str:
    """How who is to blame ended: of several the first."""
    if verdict.certainty == "undecided":
        return str(verdict.reading.kind)
    found = [case.by_rank[rank] for rank in sorted(verdict.ranks) if rank in case.by_rank]
    if not found:
        return ""
    first = min(found, key=lambda each: each.at if each.end == "failed" else 0.0)
    where = f"first rank {first.rank}, {first.where}" if len(found) > 1 else first.where
    if first.is_own:
        manner = first.how
    elif case.hang and first.end == "stopped":
        manner = f"hung, then {first.how}"
    else:
        manner = str(verdict.reading.kind)
    return ", ".join(filter(None, (manner, where)))


def _told(case: _Case, kind: Kind, ranks: Collection[int], what: str = "") -> Reading:
    """What is said of ranks to blame by what others did; `what` they did themselves."""
    waiting = [each for each in case.waiting if each.rank not in ranks]
    waiting += [each for each in case.followers if each not in waiting and each.rank not in ranks]
    call = next((_full(each) for each in waiting if _call(each)), "a collective")
    who = format_ranks([each.rank for each in waiting]) if waiting else "others"
    return of_ranks(kind, format_ranks(ranks), call, who, what)


def _differ(ranks: Collection[int], calls: Mapping[int, str]) -> Reading:
    """What is said of ranks that called different things."""
    return of_ranks(Kind.MISMATCH, format_ranks(ranks) if ranks else "", _listed(calls), "")


def _full(witness: Witness) -> str:
    standing = witness.standing
    return (standing.full if standing else "") or _call(witness)


def _listed(calls: Mapping[int, str]) -> str:
    """ "rank 0 called f(), ranks 1-2 called g()"."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(calls):
        groups[calls[rank]].append(rank)
    told = [f"{format_ranks(ranks)} called {call}" for call, ranks in list(groups.items())[:4]]
    return ", ".join(told)


def _evidence(case: _Case, verdict: _Verdict) -> tuple[str, ...]:
    """What others said, and where everybody stood; who is alike together, culprits first."""
    lines: dict[str, list[int]] = defaultdict(list)
    order = sorted(case.witnesses, key=lambda each: (each.rank not in verdict.ranks, each.rank))
    for each in order:
        for text in _testimony(each, each.rank in verdict.ranks, verdict):
            lines[text].append(each.rank)
    told = [f"{format_ranks(ranks)}: {text}" for text, ranks in lines.items()]
    told += [f"{each.name} was lost: {each.why}" for each in case.silent if each.why]
    return tuple(told[:MOST_EVIDENCE])


def _testimony(witness: Witness, is_culprit: bool, verdict: _Verdict) -> Iterable[str]:
    if witness.is_frozen:
        yield "its process was stopped (state T)"
    elif witness.end == "done":
        yield f"ended by itself with {witness.how}"
    elif witness.standing and (witness.end == "stopped" or witness.blame):
        yield f"stood {witness.standing}"
    if witness.blame and witness.blame.text:
        if not witness.blame.calls or verdict.reading.kind is not Kind.MISMATCH:
            yield witness.blame.text
    elif witness.is_own and (verdict.certainty != "certain" or not is_culprit):
        yield ": ".join(filter(None, (witness.how, witness.said)))
    if witness.call and verdict.reading.kind is Kind.MISMATCH:
        yield f"its last call was {witness.call}"
