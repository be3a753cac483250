"""Judges barriers that programs make by hand, in which ranks count arrivals. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torshrun.failure.blocked_at import ALL_RANKS
from torshrun.failure.incident import Incident
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.rank_report import RankReport
from torshrun.failure.wording import Verdict, does
from torshrun.text import format_ranks


def barrier_gave_up(case: Incident) -> Verdict | None:
    """Find who did not come where others failed because only as many ranks came as there are of
    them and of those that were still counting.
    """
    own = case.own
    came = [*own, *_counting(case)]
    counts = {_count_in(each.said) for each in own}
    return (
        _absent(case, came, own[0].said) if counts == {(len(came), len(case.witnesses))} else None
    )


def barrier_still_waits(case: Incident) -> Verdict | None:
    """Find who did not come where others were still counting ranks when they were stopped."""
    there = _counting(case)
    at = there[0].standing if there else None
    return _absent(case, there, f"{at.line}, at {at.place}") if at else None


def _counting(case: Incident) -> list[RankReport]:
    """Return those that were in such a loop when they were stopped."""
    there = [each for each in case.witnesses if each.end == "stopped" and each.standing]
    return [each for each in there if each.standing and each.standing.waits_for == ALL_RANKS]


def _absent(case: Incident, came: Sequence[RankReport], where: str) -> Verdict | None:
    absent = [each for each in case.witnesses if each not in came]
    if not absent:
        return None
    ranks = [each.rank for each in absent]
    why = f"{format_ranks([each.rank for each in came])} counted arriving ranks in a loop of the "
    why += f"program ({where}), and {format_ranks(ranks)} did not arrive: "
    why += f"{'; '.join(map(does, absent[:_MOST_SHOWN]))}."
    has_ended = all(each.end == "done" for each in absent)
    kind = Kind.EARLY_EXIT if has_ended else Kind.MISSING
    return Verdict(ranks, "likely", Diagnosis(kind, why, _MEET))


_MOST_SHOWN = 4
_MEET = (
    "Every rank must reach that place: look for a condition on the rank or on its data before it. "
    "A library's barrier instead of a loop has a timeout, and names the ranks that do not arrive."
)


def _count_in(said: str) -> tuple[int, int]:
    """Return how many of how many ranks came by these words; zeros if they do not tell it."""
    found = _COUNT.search(said)
    groups = (found["came"] or found["came_"], found["all"] or found["all_"]) if found else (0, 0)
    return int(groups[0]), int(groups[1])


_COUNT = re.compile(
    r"\b(?P<came>\d{1,7}) ?(?:/|of|out of) ?(?P<all>\d{1,7}) "
    r"(?:\w+ ){0,2}(?:ranks?|workers|processes|peers|participants|members)\b|"
    r"\b(?:ranks?|workers|processes|peers|participants|members)\b.{0,40}?[^\d.]"
    r"(?P<came_>\d{1,7}) ?(?:/|of|out of) ?(?P<all_>\d{1,7})\b"
)
