"""Judges ranks that called different things, or sent what others could not read. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from torshrun.failure.incident import Incident, call_of, comparable
from torshrun.failure.kinds import Diagnosis, Kind, of_ranks
from torshrun.failure.rank_report import RankReport
from torshrun.failure.recognition import diagnose_words
from torshrun.failure.root_cause import Certainty
from torshrun.failure.sizes import what_it_called
from torshrun.failure.wording import Verdict, differ
from torshrun.text import format_ranks


def disagreement(case: Incident) -> Verdict | None:
    """Judge ranks that called different things; None if none claims that."""
    claims = case.claims("mismatch")
    if not claims:
        return None
    calls = {rank: call for each in claims if each.blame for rank, call in each.blame.calls.items()}
    noted = _noted(case, claims)
    silent = not any(each.blame.ranks or each.blame.calls for each in claims if each.blame)
    stood = {each.rank: call_of(each) for each in case.waiting} if silent else {}
    last, numbered = _last_calls(case, calls.keys()), _numbered_calls(case, calls)
    for known in (calls, last, numbered, noted, stood):
        odd = odd_one(known)
        if odd is not None:
            return Verdict({odd}, "likely", differ({odd}, known))
    if len(calls) == 1:
        return Verdict(calls, "likely", _fault(calls))
    named = set(calls) or _apart_from_reference(case, claims)
    certainty: Certainty = "likely" if len(named) == 1 else "undecided"
    everybody = {each.rank for each in case.witnesses}
    if not calls and named:
        return Verdict(named, certainty, _unlike_reference(claims))
    said = numbered or calls or noted or {each.rank: call_of(each) for each in claims}
    return Verdict(named or everybody, certainty, differ(named, said))


def _unlike_reference(claims: Sequence[RankReport]) -> Diagnosis:
    """Describe ranks that found others to have something different from theirs."""
    found = next(each for each in claims if each.blame and each.blame.ranks)
    assert found.blame
    what = f"rank {found.rank} has something different from {format_ranks(found.blame.ranks)}"
    reading = differ((), {})
    return Diagnosis(reading.kind, f"{what}: {found.blame.text}.", reading.advice)


def _noted(case: Incident, claims: Sequence[RankReport]) -> Mapping[int, str]:
    """Return what each rank called by its own account. A rank that could not say it is listed if
    what it got shows that it called the same as another rank.
    """
    calls = {each.rank: comparable(each.call) for each in case.witnesses if each.call}
    for each in claims:
        if each.blame and each.blame.came and each.rank not in calls and len(calls) > 1:
            calls[each.rank] = what_it_called(each.blame.came, each.blame.room, calls)
    return {rank: call for rank, call in calls.items() if call}


def _fault(calls: Mapping[int, str]) -> Diagnosis:
    """Describe the only rank that all say did something wrong."""
    ((rank, what),) = calls.items()
    known = diagnose_words([what], "")
    kind, advice = (known.kind, known.advice) if known else (Kind.MISMATCH, "")
    return Diagnosis(kind, f"rank {rank}: {what}.", advice)


def _apart_from_reference(case: Incident, claims: Sequence[RankReport]) -> set[int]:
    """Return the odd ones among ranks that compare themselves with one reference rank.

    These are the ranks that found a difference, or the reference if all others did, or both if no
    other rank is known to be the same. Empty if they do not say whom they compare with.
    """
    reference = {rank for each in claims if each.blame for rank in each.blame.ranks}
    differing = {each.rank for each in claims if each.blame and each.blame.ranks} - reference
    same = {each.rank for each in case.witnesses} - differing - reference
    if len(differing) == 1 and same:
        return differing
    if len(reference) == 1 and len(differing) > 1 and not same:
        return reference
    return reference | differing


def _last_calls(case: Incident, ranks: Collection[int]) -> Mapping[int, str]:
    """Return what ranks noted of the collective that these ranks had entered last."""
    stands = {each.rank: each.standing for each in case.witnesses if each.standing}
    places = {(at.group, at.sequence) for rank, at in stands.items() if rank in ranks and at.last}
    return {rank: at.last for rank, at in stands.items() if (at.group, at.sequence) in places}


def _numbered_calls(case: Incident, calls: Mapping[int, str]) -> Mapping[int, str]:
    """Return the calls with their numbers, if ranks that disagree made the same call; else {}.

    They then differ in what they called before.
    """
    if len(calls) < 2 or len({*calls.values()}) > 1:
        return {}
    stands = [(each.rank, each.standing) for each in case.witnesses if each.standing]
    groups = {at.group for rank, at in stands if rank in calls}
    return {
        rank: f"{at.last} as operation {at.sequence}" for rank, at in stands if at.group in groups
    }


def odd_one(calls: Mapping[int, str]) -> int | None:
    """Return the only rank of at least three whose call differs, if all others' are equal."""
    counts = Counter(calls.values())
    odd = [rank for rank, call in calls.items() if counts[call] == 1]
    return odd[0] if len(calls) >= 3 and len(counts) == 2 and len(odd) == 1 else None


def unread(case: Incident) -> Verdict | None:
    """Find the only rank that sent what others could not read, or the only one that could not read:
    it has different code, while most have the same.
    """
    readers = {each.rank for each in case.claims("unread")}
    if not readers:
        return None
    others = {each.rank for each in case.witnesses} - readers
    odd = others if len(others) == 1 < len(readers) else readers if len(readers) == 1 else set()
    what = next(each.blame.text for each in case.claims("unread") if each.blame)
    reading = of_ranks(Kind.VERSION, format_ranks(readers), "", "", what)
    if _LACKS.search(what):
        reading = reading._replace(kind=Kind.IMPORT)
    return Verdict(odd or others | readers, "likely" if odd else "undecided", reading)


_LACKS = re.compile(r"\b(?:ModuleNotFound|Import)Error\b")
