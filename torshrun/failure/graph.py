"""Who is to blame, from what is known of all ranks: the blame graph. Pure.

A rank that failed and blames nobody is a cause. The others point at ranks, by what their errors
name and by the collectives that they were in; who is pointed at and points at nobody is to blame.
Where that leads in a circle, or to several without more evidence, nobody can tell, and that is
said: it is worse to be sure and wrong.

Moments are compared within a node only; between nodes the order of their reports in the store
counts, and that only for who is named first.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torshrun.failure.case import MESSAGES, Case, call_of, comparable
from torshrun.failure.finding import Certainty, Finding
from torshrun.failure.kinds import Kind, Reading, of_ranks
from torshrun.failure.signs import by_words, of_job
from torshrun.failure.sizes import what_it_called
from torshrun.failure.witness import Silent, Witness
from torshrun.failure.wording import Verdict, differ, evidence, listed, manner_of, told
from torshrun.text import format_ranks


def find(
    witnesses: Sequence[Witness], silent: Sequence[Silent] = (), hang: str = ""
) -> Finding | None:
    """The root cause; None if nothing failed. `hang`: in a line, if there was no progress."""
    case = Case(tuple(witnesses), tuple(silent), hang)
    if not case.failed and not silent and not hang:
        return None
    verdict = next(filter(None, (judge(case) for judge in _JUDGES)))
    return Finding(
        ranks=tuple(sorted(verdict.ranks)),
        nodes=tuple(sorted(verdict.nodes)),
        certainty=verdict.certainty,
        reading=verdict.reading,
        how=manner_of(case, verdict),
        evidence=evidence(case, verdict),
    )


# ---- judges: each gives a verdict, or leaves it to the next


def _own_failure(case: Case) -> Verdict | None:
    """Who failed and blames nobody."""
    if not case.own:
        return None
    classes = _alike(case.own)
    if len(classes) == 1 and classes[0][0].reading.kind is Kind.NAN:
        return _spread(classes[0])
    chosen = _outstanding(case, classes)
    if chosen is None:
        ranks = [each.rank for found in classes for each in found]
        return Verdict(ranks, "undecided", classes[0][0].reading)
    doubts = len(classes) > 1 or case.silent or _others_are_pointed_at(case)
    doubts = doubts or _may_be_anothers(case, chosen)
    ranks = [each.rank for each in chosen]
    return Verdict(ranks, "likely" if doubts else "certain", chosen[0].reading)


def _may_be_anothers(case: Case, chosen: Sequence[Witness]) -> bool:
    """Whether another rank may be behind a failure that blames nobody: one that all others met,
    that is told of another rank or of waiting, or of what ranks share.
    """
    rest = len(case.witnesses) - len(chosen)
    met_by_most = 0 < rest < len(chosen)
    first = chosen[0]
    told = _OTHERS.search(first.said) and first.reading.kind in _OPEN
    larger = any(each.peak > _MUCH_MORE * first.peak > 0 for each in case.witnesses)
    hog = first.reading.kind is Kind.OUT_OF_MEMORY and larger
    return met_by_most or bool(told) or hog or first.reading.kind in _SHARED


_OTHERS = re.compile(r"\b[Rr]ank[ #=:]*\d|[Tt]imed? ?out|\b[Pp]eer\b")
_OPEN = (Kind.EXCEPTION, Kind.EXIT_CODE)
_SHARED = (Kind.NETWORK, Kind.STORE, Kind.ADDRESS_IN_USE)
_MUCH_MORE = 1.5


def _spread(alike: Sequence[Witness]) -> Verdict:
    """Of ranks that all have numbers which are none: a sum brings them from one to all."""
    warned = [each.rank for each in alike if each.warning]
    if len(alike) == 1 or len(warned) == 1:
        first = warned or [alike[0].rank]
        return Verdict(first, "likely" if len(alike) > 1 else "certain", alike[0].reading)
    return Verdict([each.rank for each in alike], "undecided", alike[0].reading)


def _alike(witnesses: Iterable[Witness]) -> list[list[Witness]]:
    """Those that failed alike together, in the order in which they did."""
    classes: dict[str, list[Witness]] = defaultdict(list)
    for each in sorted(witnesses, key=lambda each: (each.turn, each.node, each.at)):
        classes[each.alike or f"rank {each.rank}"].append(each)
    return list(classes.values())


def _outstanding(case: Case, classes: list[list[Witness]]) -> list[Witness] | None:
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


def _others_are_pointed_at(case: Case) -> bool:
    return bool(case.ends - {each.rank for each in case.own})


def _frozen(case: Case) -> Verdict | None:
    """Whose process stood still."""
    frozen = {each.rank for each in case.witnesses if each.is_frozen}
    if not frozen:
        return None
    others = [each for each in case.witnesses if each.rank not in frozen]
    waited = all(each.end == "done" or each.blame or call_of(each) for each in others)
    return Verdict(frozen, "certain" if waited else "likely", told(case, Kind.FROZEN, frozen))


def _disagreement(case: Case) -> Verdict | None:
    """Ranks that called different things."""
    claims = case.claims("mismatch")
    if not claims:
        return None
    calls = {rank: call for each in claims if each.blame for rank, call in each.blame.calls.items()}
    noted = _noted(case, claims)
    for known in (calls, _last_calls(case, calls.keys()), _numbered_calls(case, calls), noted):
        odd = _odd_one(known)
        if odd is not None:
            return Verdict({odd}, "likely", differ({odd}, known))
    if len(calls) == 1:
        return Verdict(calls, "likely", _fault(calls))
    named = set(calls) or _apart_from_reference(case, claims)
    certainty: Certainty = "likely" if len(named) == 1 else "undecided"
    everybody = {each.rank for each in case.witnesses}
    said = calls or noted or {each.rank: call_of(each) for each in claims}
    return Verdict(named or everybody, certainty, differ(named, said))


def _noted(case: Case, claims: Sequence[Witness]) -> Mapping[int, str]:
    """What each rank called by its own account; of one that could not say, if it was what another
    one did.
    """
    calls = {each.rank: comparable(each.call) for each in case.witnesses if each.call}
    for each in claims:
        if each.blame and each.blame.came and each.rank not in calls and len(calls) > 1:
            calls[each.rank] = what_it_called(each.blame.came, each.blame.room, calls)
    return {rank: call for rank, call in calls.items() if call}


def _unread(case: Case) -> Verdict | None:
    """Who sent what others could not read, or they who could not: they have different code."""
    readers = {each.rank for each in case.claims("unread")}
    if not readers:
        return None
    others = {each.rank for each in case.witnesses} - readers
    odd = others if len(others) == 1 < len(readers) else set()
    who = format_ranks(readers)
    what = next(each.blame.text for each in case.claims("unread") if each.blame)
    reading = of_ranks(Kind.VERSION, who, "", "", what)
    return Verdict(odd or others | readers, "likely" if odd else "undecided", reading)


def _fault(calls: Mapping[int, str]) -> Reading:
    """What is said of the only rank that all say did something wrong."""
    ((rank, what),) = calls.items()
    known = by_words([what], "")
    kind, advice = (known.kind, known.advice) if known else (Kind.MISMATCH, "")
    return Reading(kind, f"rank {rank}: {what}.", advice)


def _apart_from_reference(case: Case, claims: Sequence[Witness]) -> set[int]:
    """Of ranks that compare themselves with one: those that found a difference, or that one if all
    others did; both if nobody else is known to be the same. Empty if they do not say with whom.
    """
    reference = {rank for each in claims if each.blame for rank in each.blame.ranks}
    differing = {each.rank for each in claims if each.blame and each.blame.ranks} - reference
    same = {each.rank for each in case.witnesses} - differing - reference
    if len(differing) == 1 and same:
        return differing
    if len(reference) == 1 and len(differing) > 1 and not same:
        return reference
    return reference | differing


def _last_calls(case: Case, ranks: Collection[int]) -> Mapping[int, str]:
    """What ranks noted of the collective that these ranks had entered last."""
    stands = {each.rank: each.standing for each in case.witnesses if each.standing}
    places = {(at.group, at.sequence) for rank, at in stands.items() if rank in ranks and at.last}
    return {rank: at.last for rank, at in stands.items() if (at.group, at.sequence) in places}


def _numbered_calls(case: Case, calls: Mapping[int, str]) -> Mapping[int, str]:
    """The same with their numbers, where ranks that disagree called the same, but not before."""
    if len(calls) < 2 or len({*calls.values()}) > 1:
        return {}
    stands = [(each.rank, each.standing) for each in case.witnesses if each.standing]
    groups = {at.group for rank, at in stands if rank in calls}
    return {
        rank: f"{at.last} as operation {at.sequence}" for rank, at in stands if at.group in groups
    }


def _odd_one(calls: Mapping[int, str]) -> int | None:
    """The only rank of at least three whose call differs from all others', which are the same."""
    counts = Counter(calls.values())
    odd = [rank for rank, call in calls.items() if counts[call] == 1]
    return odd[0] if len(calls) >= 3 and len(counts) == 2 and len(odd) == 1 else None


def _pointed_at(case: Case) -> Verdict | None:
    """Who is pointed at, and points at nobody."""
    ends = case.ends
    if not ends:
        return None
    lost = [each for each in case.silent if ends & {*each.ranks}]
    if lost:
        return _lost(case, lost, "likely" if ends - _ranks_of(lost) else "certain")
    waiting = {each.rank: call_of(each) for each in case.of(ends) if call_of(each)}
    if waiting.keys() == ends:
        return _in_another(case, waiting)
    ends = ends - waiting.keys()  # they may wait for the others
    done = {each.rank for each in case.of(ends) if each.end == "done"}
    if done == ends:
        # Or those who need them went on for too long: nobody can be sure.
        return Verdict(ends, "likely", told(case, Kind.EARLY_EXIT, ends))
    if not case.of(ends) and case.claims("lost"):
        who = format_ranks(ends)
        return Verdict(ends, "likely", of_ranks(Kind.NODE_LOST, who, "", "", _UNHEARD))
    return Verdict(ends, "likely", _why_absent(case, ends))


def _in_another(case: Case, ends: Mapping[int, str]) -> Verdict:
    """Of ranks that others wait for, and that were in a collective themselves."""
    pointing = {each.rank: call_of(each) for each in case.of(case.edges.keys())}
    calls = {**pointing, **ends}
    if set(calls.values()) <= MESSAGES:
        return _mutual(case, calls, calls)
    if set(ends.values()) <= set(pointing.values()):  # they came, and too late
        return Verdict(ends, "likely", _why_absent(case, ends.keys()))
    odd = _odd_one(calls)
    if odd is not None:
        return Verdict({odd}, "likely", differ({odd}, calls))
    return Verdict(calls, "undecided", differ(calls, calls))


_UNHEARD = "others lost it, and nothing is known of its node"


def _circle(case: Case) -> Verdict | None:
    """Ranks that point at each other."""
    ranks = case.circles
    if not ranks:
        return None
    votes = Counter(rank for whom in case.edges.values() for rank in whom)
    (first, most), *rest = votes.most_common(2)
    if most > 1 and (not rest or rest[0][1] < most) and first in ranks:
        return Verdict({first}, "likely", told(case, Kind.MISSING, {first}))
    calls = {each.rank: call_of(each) for each in case.of(ranks)}
    return _mutual(case, ranks, calls)


def _mutual(case: Case, ranks: Collection[int], calls: Mapping[int, str]) -> Verdict:
    """Of ranks that wait for each other, in these calls."""
    names = set(calls.values())
    who, what = format_ranks(ranks), listed(calls)
    told_calls = {each.rank: comparable(each.call) for each in case.of(ranks)}
    if all(told_calls.values()) and len({*told_calls.values()}) > 1:
        return Verdict(ranks, "undecided", differ(ranks, told_calls))
    if len(names) > 1 and not names <= MESSAGES:
        return Verdict(ranks, "undecided", differ(ranks, calls))
    alike = case.do_the_same(ranks)
    if alike and not names <= MESSAGES:
        return Verdict(ranks, "undecided", of_ranks(Kind.NETWORK, who, "", "", _IN_VAIN))
    deadlock = of_ranks(Kind.DEADLOCK, who, "", "each other", what)
    return Verdict(ranks, "likely" if alike else "undecided", deadlock)


_IN_VAIN = "they were in the same collective, and what they send does not arrive, or too slowly"


def _left(case: Case) -> Verdict | None:
    """Who ended well while others still needed it."""
    lost = case.claims("lost")
    done = {each.rank for each in case.witnesses if each.end == "done"}
    if not done or not (lost or (case.followers and not case.away)):
        return None
    return Verdict(done, "likely", told(case, Kind.EARLY_EXIT, done))


def _silent(case: Case) -> Verdict | None:
    """Nodes that were lost, if nothing else explains it."""
    if not case.silent:
        return None
    return _lost(case, case.silent, "certain" if len(case.silent) == 1 else "likely")


def _lost(case: Case, silent: Sequence[Silent], certainty: Certainty) -> Verdict:
    names = " and ".join(each.name for each in silent)
    why = "; ".join(filter(None, (each.why for each in silent[:1])))
    nodes = [each.node for each in silent if each.node >= 0]
    if all(each.is_unable for each in silent):
        reading = of_job(f"{names} cannot run workers: {why}", Kind.AGENT)
        return Verdict((), certainty, reading, nodes)
    # Whose connections end has ended itself.
    kind = Kind.NODE_LOST if case.claims("lost") else Kind.UNREACHABLE
    reading = of_ranks(kind, names, "", "", why or "nothing more was heard of it")
    return Verdict((), certainty, reading, nodes)


def _ranks_of(silent: Iterable[Silent]) -> set[int]:
    return {rank for each in silent for rank in each.ranks}


def _absent(case: Case) -> Verdict | None:
    """Who stood outside of the collectives that others waited in."""
    away = {each.rank for each in case.away}
    if not away or not (case.waiting or case.claims("late")):
        return None
    return Verdict(away, "likely", _why_absent(case, away))


def _why_absent(case: Case, ranks: Collection[int]) -> Reading:
    """What kept ranks from a collective that others waited in."""
    found = case.of(ranks)
    thread = next((each.thread for each in found if each.thread), "")
    if thread:
        return told(case, Kind.EXCEPTION, ranks, thread)
    if any(each.is_deaf for each in found):
        return told(case, Kind.HUNG, ranks, "something in the kernel, in state D")
    awaited = next((each.standing.waits_for for each in found if each.standing), "")
    if awaited == "a lock":
        return told(case, Kind.DEADLOCK, ranks, awaited)
    child = next((each.child for each in found if each.child), "")
    if child:
        return told(case, Kind.HUNG, ranks, f"{awaited or 'something'}; {child}")
    return told(case, Kind.HUNG if awaited else Kind.MISSING, ranks, awaited)


def _elsewhere(case: Case) -> Verdict | None:
    """Ranks that waited in different collectives, or for each other."""
    # Who is ahead of others is not the one who keeps them waiting.
    behind = [each for each in case.waiting if each.rank not in case.edges] or case.waiting
    calls = {each.rank: call_of(each) for each in behind}
    if len(calls) < 2:
        return None
    odd = _odd_one(calls)
    if odd is not None:
        return Verdict({odd}, "likely", differ({odd}, calls))
    waits = case.claims("late") or case.hang or len({*calls.values()}) > 1
    return _mutual(case, calls, calls) if waits else None


def _weak(case: Case) -> Verdict | None:
    """Whose failure may well be its own, although it speaks of others."""
    weak = [each for each in case.followers if each.blame and each.blame.weak]
    muttering = [each for each in case.witnesses if each.end == "stopped" and each.mutters]
    return _suspected(case, weak or muttering)


def _alone(case: Case) -> Verdict | None:
    """Who failed while the others did well."""
    return _suspected(case, case.followers)


def _suspected(case: Case, suspects: Sequence[Witness]) -> Verdict | None:
    if not suspects or len(suspects) == len(case.witnesses) > 1:
        return None
    certainty: Certainty = "likely" if len(suspects) == 1 else "undecided"
    reading, ranks = suspects[0].reading, [each.rank for each in suspects]
    if reading.kind in (Kind.PEER_LOST, Kind.STOPPED):
        meets = call_of(suspects[0]) == "init_process_group"
        why = _NOT_MET if meets else "no end of another rank explains that"
        reading = of_ranks(Kind.NETWORK, format_ranks(ranks), "", "", why)
    return Verdict(ranks, certainty, reading)


_NOT_MET = "they do not reach the store at the port that MASTER_ADDR and MASTER_PORT name there"


def _unexplained(case: Case) -> Verdict:
    """Nothing tells more."""
    if case.hang:
        return _no_progress(case)
    ranks = [each.rank for each in case.failed]
    certainty: Certainty = "likely" if len(ranks) == 1 else "undecided"
    return Verdict(ranks, certainty, min(case.failed, key=lambda each: each.at).reading)


def _no_progress(case: Case) -> Verdict:
    """Ranks that hang, each by itself: if all do the same it is no rank's fault."""
    ranks = [each.rank for each in case.witnesses if each.end != "done"]
    reading = of_ranks(Kind.HUNG, format_ranks(ranks), "", "", f"something unknown ({case.hang})")
    if len(ranks) == 1:
        return Verdict(ranks, "likely", reading)
    known = all(each.standing for each in case.of(ranks))
    alike = known and case.do_the_same(ranks) and not case.waiting
    return Verdict(() if alike else ranks, "likely" if alike else "undecided", reading)


_JUDGES: Sequence[Callable[[Case], Verdict | None]] = (
    _own_failure,
    _frozen,
    _disagreement,
    _unread,
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
