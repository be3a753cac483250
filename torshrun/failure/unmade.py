"""Judges ranks that wait, outside of collectives, for what another rank is to make. Pure."""

from __future__ import annotations

import re

from torshrun.failure.case import Case, call_of
from torshrun.failure.kinds import Kind, Reading
from torshrun.failure.standing import A_FILE, KEYS
from torshrun.failure.witness import Witness
from torshrun.failure.wording import Verdict, where_it_waits
from torshrun.text import format_ranks


def unmade(case: Case) -> Verdict | None:
    """Ranks that wait for a file to appear, or for keys of the store, while others are to make it:
    a file those that are not in a collective.
    """
    waiting = [each for each in case.witnesses if each.end == "stopped" and _waits(each)]
    if not waiting:
        return None
    others = [each for each in case.witnesses if each not in waiting]
    who, at = format_ranks([each.rank for each in waiting]), waiting[0].standing
    assert at
    is_key = at.call == KEYS
    what = where_it_waits(waiting[0]) if is_key else f"{A_FILE} ({at.line}, at {at.place})"
    why = f"{who} waited {'in' if is_key else 'for'} {what}, which no rank had made."
    if not others:
        return Verdict((), "likely", Reading(Kind.HUNG, why, _MAKE))
    apart = [each for each in others if not call_of(each)] or others * is_key
    if not apart:
        return None
    why += f" Meanwhile {'; '.join(map(_does, apart[:_MOST_SHOWN]))}."
    return Verdict([each.rank for each in apart], "likely", Reading(Kind.MISSING, why, _MAKE))


_MOST_SHOWN = 4
_MAKE = (
    "See which rank is to make it, and whether it gets there: no rank may wait in a collective for "
    "others that wait for what it makes later. A barrier or a broadcast instead of the file or key "
    "has a timeout, and names who does not come."
)


def _waits(witness: Witness) -> bool:
    at = witness.standing
    return bool(at and (at.waits_for == A_FILE or at.call == KEYS))


def _does(witness: Witness) -> str:
    """ "rank 0 stood in no collective, at t.py:6: time.sleep(60)"."""
    if witness.end == "done":
        return f"rank {witness.rank} had ended with {witness.how}"
    if witness.standing:
        return f"rank {witness.rank} stood {witness.standing}"
    return f"rank {witness.rank} stood at a place that is not known"


def unset(case: Case) -> Verdict | None:
    """Ranks whose store did not have keys of the program's own in time: if all others were in
    collectives, whoever asks may have asked for the wrong ones.
    """
    keys = {each.rank: match[1] for each in case.followers if (match := _UNSET.search(each.said))}
    others = [each for each in case.witnesses if each.rank not in keys]
    if not keys or not others or case.silent:
        return None
    first, apart = min(keys), [each for each in others if not call_of(each)]
    why = (
        f"{format_ranks(keys)} waited in vain for '{keys[first]}' in the store, which no rank had "
    )
    why += f"set. Meanwhile {'; '.join(map(_does, (apart or others)[:_MOST_SHOWN]))}."
    if apart:
        return Verdict([each.rank for each in apart], "likely", Reading(Kind.MISSING, why, _MAKE))
    ranks = [each.rank for each in case.witnesses]
    return Verdict(ranks, "undecided", Reading(Kind.STORE, why, f"{_SAME_KEY} {_MAKE}"))


_UNSET = re.compile(
    r"wait timeout after \d+ms, keys: \S*default_pg/0//"
    r"(?!(?:cpu|cuda|xpu)//|\S*(?:barrier|init_|worker_count))(\S+)"
)
"""Keys that the groups make for themselves are none of the program's."""
_SAME_KEY = "Compare the names of keys that ranks set and ask for, with their prefixes."


def given_up(case: Case) -> Verdict | None:
    """Most ranks gave up waiting for something of their own, in the same way, while the others were
    at work elsewhere, outside of collectives.
    """
    own, still = case.own, [each for each in case.away if not _waits(each)]
    is_most = len(own) > len(still) > 0 and len(own) + len(still) == len(case.witnesses)
    if not is_most or len({each.alike for each in own}) > 1 or not _GAVE_UP.search(own[0].said):
        return None
    if {_place(each) for each in own} & {_place(each) for each in still}:
        return None
    why = f"{format_ranks([each.rank for each in own])} gave up waiting ({own[0].said}), while "
    why += f"{'; '.join(map(_does, still[:_MOST_SHOWN]))}: most likely for what is done there."
    return Verdict([each.rank for each in still], "likely", Reading(Kind.MISSING, why, _LONGER))


_GAVE_UP = re.compile(r"^(?:\w+\.)*(?:Timeout\w*|\w*Timeout(?:Error)?)\b")
_LONGER = (
    "See what takes so long there, and whether it ends; wait for longer than that, or in a "
    "collective with a timeout that fits (barrier, broadcast)."
)


def _place(witness: Witness) -> str:
    return witness.standing.place if witness.standing else ""
