"""Judges errors of one rank that a library or the program hands to all others. Pure."""

from __future__ import annotations

import re

from torshrun.failure.incident import Incident
from torshrun.failure.rank_report import RankReport
from torshrun.failure.wording import Verdict
from torshrun.text import format_ranks


def relayed(case: Incident) -> Verdict | None:
    """Judge ranks that failed by all errors, if these are errors of other ranks, too."""
    own = case.own
    failed = [_failed_in(each.said) for each in own]
    named = next(filter(None, failed), frozenset())
    if len(own) < 2 or not named or not named <= case.by_rank.keys():
        return None
    tell = [each for each, whom in zip(own, failed, strict=True) if whom == named]
    silent = [each.rank for each in own if each not in tell]
    others = [each for each in tell if each.rank not in named]
    is_all = len(named) == len(tell) == len(case.witnesses)
    if not named.issuperset(silent) or not (others or is_all):
        return None
    first = _nearest(own, silent, named) or tell[0]
    why = f"{format_ranks([each.rank for each in tell])} had the error from "
    why += f"{format_ranks(named)}: {tell[0].said}"
    reading = first.reading if is_all else first.reading._replace(why=first.reading.why or why)
    return Verdict(named, "likely", reading)


def _nearest(own: list[RankReport], silent: list[int], named: frozenset[int]) -> RankReport | None:
    """Return the report that is nearest to the failure: of a named rank, best of a silent one."""
    found = [each for each in own if each.rank in named]
    return next((each for each in found if each.rank in silent), next(iter(found), None))


def _failed_in(said: str) -> frozenset[int]:
    """Return the ranks that failed by these words of an error; none if they name several groups of
    ranks, or ranks for something else.
    """
    message = _CLASS.sub("", said, count=1)
    found = _RANKS.findall(message)
    if len(found) != 1 or not _FAILED.search(message):
        return frozenset()
    return frozenset(map(int, re.findall(r"\d+", found[0])))


_CLASS = re.compile(r"^(?:\w+\.)*\w+: ")
_RANKS = re.compile(
    r"\b[Rr]ank(?:s|\(s\))?[ #:=]*(?:dict_keys\()?"
    r"([\[({]?\d{1,7}(?:(?:, ?| and )\d{1,7})*\b)"
)
_FAILED = re.compile(
    r"\b(?:fail(?:ed|ures?|s)?|raised|\w*exceptions?|\w*errors?|died|crashed|aborted|went wrong)\b",
    re.IGNORECASE,
)
