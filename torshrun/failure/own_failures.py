"""Judges failures that are a rank's own: it failed, and blames nobody. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from torshrun.failure.held_locks import says_held
from torshrun.failure.incident import Incident
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.numbers import first_of
from torshrun.failure.rank_report import RankReport
from torshrun.failure.tables import table_in
from torshrun.failure.wording import Verdict
from torshrun.text import size


def own_failure(case: Incident) -> Verdict | None:
    """Judge ranks that failed and blame nobody."""
    if not case.own:
        return None
    classes = _alike(case.own)
    compared = _compared(case)
    if compared:
        return compared
    if len(classes) == 1 and classes[0][0].reading.kind is Kind.NAN:
        return _spread(case, classes[0])
    chosen = _outstanding(case, classes)
    if chosen is None:
        ranks = [each.rank for found in classes for each in found]
        return Verdict(ranks, "undecided", classes[0][0].reading)
    return _of_chosen(case, chosen, is_only=len(classes) == 1)


def _of_chosen(case: Incident, alike: list[RankReport], is_only: bool) -> Verdict:
    """Judge the failures that others may follow from; `is_only`: no failures differ from them."""
    chosen = _hogs(alike)
    first = chosen[0]
    rival = case.by_rank.get(first.rival) if len(chosen) == 1 else None
    if rival and first.reading.kind is Kind.USAGE and not first.rank:
        # Rank 0 alone serves the job's store, so the other one takes itself for it.
        return Verdict({rival.rank}, "likely", first.reading)
    as_large = _as_large(case, chosen)
    if as_large:
        ranks = [each.rank for each in (*chosen, *as_large)]
        return Verdict(ranks, "undecided", _of_several(first, as_large))
    doubts = not is_only or case.silent or rival or chosen != alike or _others_are_pointed_at(case)
    doubts = doubts or _may_be_anothers(case, chosen) or _is_unsure(chosen)
    return Verdict([each.rank for each in chosen], "likely" if doubts else "certain", first.reading)


def _compared(case: Incident) -> Verdict | None:
    """Judge ranks that have something different from the others, by errors of ranks that compared
    all of them. Of two, or of several, any may be the wrong one.
    """
    tables = [table_in(each.said, len(case.witnesses)) for each in case.own]
    if len(case.witnesses) < 2 or not all(tables) or any(each != tables[0] for each in tables):
        return None
    table, reading = tables[0], case.own[0].reading
    common = Counter(table.values()).most_common(2)
    if len(common) < 2:  # all have the same: that is not what is wrong
        return None
    is_most = common[0][1] > common[1][1]
    odd = {rank for rank, what in table.items() if is_most and what != common[0][0]}
    return Verdict(odd or {*table}, "likely" if odd else "undecided", reading)


def _hogs(chosen: list[RankReport]) -> list[RankReport]:
    """Return those ranks killed for lack of memory that had taken it, not those that had little."""
    peaks = [each.peak for each in chosen]
    if chosen[0].reading.kind is not Kind.OUT_OF_MEMORY or not all(peaks):
        return chosen
    return [each for each in chosen if each.peak * _MUCH_MORE >= max(peaks)]


def _as_large(case: Incident, chosen: Sequence[RankReport]) -> list[RankReport]:
    """Return ranks of the same node that had about as much memory as those that the kernel killed
    for lack of it: that it chose these may be chance. [] if any rank had much more.
    """
    first = chosen[0]
    if first.reading.kind is not Kind.OUT_OF_MEMORY or not all(map(_tells_peak, chosen)):
        return []
    others = [each for each in _beside(case, chosen) if each.peak * _MUCH_MORE >= first.peak]
    if any(each.peak > _MUCH_MORE * first.peak for each in others):
        return []
    return others


def _tells_peak(killed: RankReport) -> bool:
    """Return whether its memory is known, and not only a process of its own was killed."""
    return killed.peak > 0 and "exit code 137" in killed.how


def _of_several(killed: RankReport, others: Sequence[RankReport]) -> Diagnosis:
    """Describe a kill for lack of memory that others had taken as well."""
    had = ", ".join(f"rank {each.rank} {size(each.peak << 10)}" for each in others[:_MOST_SHOWN])
    why = f"{killed.reading.why} Others had about as much at a time, or more: {had}."
    return killed.reading._replace(why=why)


_MOST_SHOWN = 4


def _beside(case: Incident, chosen: Sequence[RankReport]) -> list[RankReport]:
    """Return the other ranks on the nodes of these ranks."""
    nodes = {each.node for each in chosen}
    return [each for each in case.witnesses if each.node in nodes and each not in chosen]


def _takes_most(case: Incident, chosen: Sequence[RankReport]) -> bool:
    """Return whether, as far as is known, no other rank of the node has taken more memory, or,
    where the kernel chose whom to kill, not even nearly as much.
    """
    others = _beside(case, chosen)
    least = min(each.peak for each in chosen)
    if chosen[0].reading.kind is Kind.OUT_OF_MEMORY:
        is_told = all(map(_tells_peak, chosen))
        return not others or (is_told and all(0 < each.peak < least for each in others))
    return not any(each.peak > _MUCH_MORE * least > 0 for each in others)


def _is_unsure(chosen: Sequence[RankReport]) -> bool:
    """Return whether what is known of them may be about something other than their ends."""
    return any(each.is_unsure for each in chosen) and chosen[0].reading.kind is not Kind.EXIT_CODE


def _may_be_anothers(case: Incident, chosen: Sequence[RankReport]) -> bool:
    """Return whether another rank may be behind a failure that blames nobody.

    That is so for a failure that all others met, that mentions another rank, waiting or what
    somebody else holds, that is about what ranks share, as files and memory are, or that came from
    outside; and for exit codes of several ranks without a word.
    """
    if len(case.witnesses) == 1:
        return False
    rest = len(case.witnesses) - len(chosen)
    met_by_most = 0 < rest < len(chosen)
    first = chosen[0]
    told = _OTHERS.search(first.said) and (first.reading.kind in _OPEN or not rest)
    told = told or says_held(first.said)
    wordless = len(chosen) > 1 and not any(each.said for each in chosen)
    silent = wordless and first.reading.kind is Kind.EXIT_CODE
    is_small = first.reading.kind in _OF_MEMORY and not _takes_most(case, chosen)
    is_taken = "EADDRINUSE" in first.said  # by whom, if not by another rank?
    outside = is_taken or first.reading.kind in _FROM_OUTSIDE or first.how.startswith(_NOT_ITS_OWN)
    return met_by_most or bool(told) or is_small or outside or silent


_OTHERS = re.compile(r"\b[Rr]ank[ #=:]*\d|[Tt]imed? ?out|\b[Pp]eer\b")
_OPEN = (Kind.EXCEPTION, Kind.EXIT_CODE)
_OF_MEMORY = (Kind.OUT_OF_MEMORY, Kind.ALLOCATION)
_FROM_OUTSIDE = (
    Kind.SHARED_MEMORY,  # which all ranks fill
    Kind.NO_FILE,  # which another rank may not have made yet, or may have removed
    Kind.NETWORK,
    Kind.STORE,
    Kind.ADDRESS_IN_USE,
    Kind.KILLED,  # by somebody
    Kind.EARLY_EXIT,
)
_NOT_ITS_OWN = "killed by SIGBUS"
"""The manner of an end because a file was cut short, or because of memory that all share."""
_MUCH_MORE = 1.5


def _spread(case: Incident, alike: Sequence[RankReport]) -> Verdict:
    """Judge ranks that have NaN or infinite numbers.

    A sum brings them from one rank to all, and whoever looks first finds them, perhaps as the only
    one. They came from the rank whose arithmetic has warned or, if there are several, from the one
    whose numbers were finite before.
    """
    warned = [each for each in case.witnesses if each.warning]
    made = [each for each in warned if not _MAY_COME_OF_OTHERS.search(each.warning)]
    origins = [each.rank for each in made or warned] or _first_to_write(case)
    looks = case.witnesses if all(each.looks_alone for each in alike) else alike
    first = origins if len(origins) == 1 else [each.rank for each in looks]
    if len(case.witnesses) == 1:
        return Verdict(first, "certain", alike[0].reading)
    if not origins and all(each.numbers and each.numbers.grows for each in case.witnesses):
        reading = alike[0].reading
        return Verdict((), "likely", reading._replace(why=f"{reading.why} {_DIVERGED}"))
    return Verdict(first, "likely" if len(first) == 1 else "undecided", alike[0].reading)


def _first_to_write(case: Incident) -> list[int]:
    """Return the rank that wrote such a number while all others' were finite; [] if unknown."""
    found = first_of({each.rank: each.numbers for each in case.witnesses})
    return [] if found is None else [found]


_DIVERGED = "Before that it had grown many times over from step to step on all ranks: it diverges."
_MAY_COME_OF_OTHERS = re.compile("invalid value")  # as the difference of two that are infinite


def _alike(witnesses: Iterable[RankReport]) -> list[list[RankReport]]:
    """Return groups of those that failed alike, in the order in which they did."""
    classes: dict[str, list[RankReport]] = defaultdict(list)
    for each in sorted(witnesses, key=lambda each: (each.turn, each.node, each.at)):
        classes[each.alike or f"rank {each.rank}"].append(each)
    return list(classes.values())


def _outstanding(case: Incident, classes: list[list[RankReport]]) -> list[RankReport] | None:
    """Return the failures that the others may follow from; None if several are as likely."""
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


def _strength(alike: Sequence[RankReport]) -> int:
    return max(each.strength for each in alike)


def _others_are_pointed_at(case: Incident) -> bool:
    return bool(case.ends - {each.rank for each in case.own})
