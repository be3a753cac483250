"""Judges ranks that wait, outside of collectives, for what another rank should create. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torshrun.failure.asides import PATH_IN_WORDS
from torshrun.failure.blocked_at import A_FILE, KEYS
from torshrun.failure.incident import Incident, call_of
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.rank_report import RankReport
from torshrun.failure.recognition import diagnose_words
from torshrun.failure.root_cause import Certainty
from torshrun.failure.suspect import from_words
from torshrun.failure.wording import Verdict, does, where_it_waits
from torshrun.text import format_ranks


def never_created(case: Incident) -> Verdict | None:
    """Judge ranks that wait for a file to appear, or for keys of the store, which others must make.

    A file must be made by those that are not in a collective.
    """
    waiting = [each for each in case.witnesses if each.end == "stopped" and _waits(each)]
    if not waiting:
        return None
    others = [each for each in case.witnesses if each not in waiting]
    who, at = _ranks(waiting), waiting[0].standing
    assert at
    is_key = _asks(waiting[0])
    what = where_it_waits(waiting[0]) if is_key else f"{A_FILE} ({at.line}, at {at.place})"
    why = f"{who} waited {'in' if is_key else 'for'} {what}, which no rank had created."
    if not others:
        return Verdict((), "likely", Diagnosis(Kind.HUNG, why, _MAKE))
    apart = [each for each in others if not call_of(each)] or others * is_key
    if not apart:
        makers = [each for each in others if each.unmade]
        return _of_makers(makers, why) if makers else _kept_from_it(others, why)
    why += f" Meanwhile {'; '.join(map(does, apart[:_MOST_SHOWN]))}."
    return Verdict([each.rank for each in apart], "likely", _absent(apart, why, _MAKE))


def _kept_from_it(others: Sequence[RankReport], lack: str) -> Verdict | None:
    """Blame the only rank that had handled an exception, among ranks that continued without making
    what the others lack; None if it is not only one.

    An exception that names other ranks, as one that the end of the job raises does, is no cause.
    """
    handled = [each for each in others if each.logged and not from_words([each.logged])]
    if len(handled) != 1:
        return None
    first = handled[0]
    known = diagnose_words([first.logged], "")
    why = f"{lack} Before that, rank {first.rank} had handled an exception ({first.logged}) and "
    why += f"continued: {does(first)}. Most likely it therefore did not create it."
    kind = known.kind if known else Kind.EXCEPTION
    return Verdict({first.rank}, "likely", Diagnosis(kind, why, _TELL))


_MOST_SHOWN = 4
_MAKE = (
    "See which rank should create it, and whether it gets there: no rank may wait in a collective "
    "for others that wait for what it creates later. A barrier or a broadcast instead of the file "
    "or key has a timeout, and names the ranks that do not arrive."
)


def _waits(witness: RankReport) -> bool:
    at = witness.standing
    return bool(at and at.waits_for == A_FILE) or _asks(witness)


def _asks(witness: RankReport) -> bool:
    """Return whether it waits for keys of the store."""
    return bool(witness.standing and witness.standing.call == KEYS)


def _ranks(witnesses: Sequence[RankReport]) -> str:
    return format_ranks([each.rank for each in witnesses])


def _absent(apart: Sequence[RankReport], why: str, advice: str) -> Diagnosis:
    """Describe ranks that have not made what others wait for: in a clean-up, most likely an
    exception has kept them from it.
    """
    if not all(each.standing and each.standing.cleans for each in apart):
        return Diagnosis(Kind.MISSING, why, advice)
    handled = next((each.handles for each in apart if each.handles), "")
    what = f"{_ranks(apart)} was in a clean-up (finally or except): most likely an exception"
    what += f" ({handled})" if handled else ""
    return Diagnosis(Kind.EXCEPTION, f"{why} {what} had ended the work there.", _LET_IT_OUT)


_LET_IT_OUT = (
    "Fix what raised it. During a long clean-up the exception is not shown, and the other ranks do "
    "not know of it: raise it first, or tell them."
)


def unset_key(case: Incident) -> Verdict | None:
    """Judge ranks whose store did not have keys of the program's own in time: if all others were in
    collectives, the ranks that asked may have asked for the wrong keys.
    """
    keys = {each.rank: match[1] for each in case.followers if (match := _UNSET.search(each.said))}
    others = [each for each in case.witnesses if each.rank not in keys]
    if not keys or not others or case.silent:
        return None
    first, apart = min(keys), [each for each in others if not call_of(each)]
    why = f"{format_ranks(keys)} timed out waiting for '{keys[first]}' in the store, which no rank "
    why += f"had set. Meanwhile {'; '.join(map(does, (apart or others)[:_MOST_SHOWN]))}."
    if apart:
        return Verdict([each.rank for each in apart], "likely", Diagnosis(Kind.MISSING, why, _MAKE))
    handled = _kept_from_it(others, why)
    if handled:
        return handled
    ranks = [each.rank for each in case.witnesses]
    return Verdict(ranks, "undecided", Diagnosis(Kind.STORE, why, f"{_SAME_KEY} {_MAKE}"))


_UNSET = re.compile(
    r"wait timeout after \d+ms, keys: \S*default_pg/0//"
    r"(?!(?:cpu|cuda|xpu)//|\S*(?:barrier|init_|worker_count))(\S+)"
)
"""Matches a key of the program; keys that groups make for themselves are none."""
_SAME_KEY = "Compare the names of keys that ranks set and ask for, with their prefixes."


def creation_failed(case: Incident) -> Verdict | None:
    """Blame ranks that could not make a file, by their own words, and continued.

    Others then did not find that file.
    """
    own = case.own
    missing = [_names(each) for each in own]
    if not own or not all(missing):
        return None
    common = set.intersection(*missing)
    makers = [
        each
        for each in case.witnesses
        if not each.is_own and any(_is_named(name, each.unmade) for name in common)
    ]
    return _of_makers(makers, f"Meanwhile {_ranks(own)} did not find it.") if makers else None


def removed_too_early(case: Incident) -> Verdict | None:
    """Blame ranks that said that they remove what others then did not find: it may have been too
    early, or the others too late.
    """
    missing = [each for each in case.own if each.reading.kind is Kind.NO_FILE]
    if not missing or len(missing) < len(case.own):
        return None
    paths = {path for each in missing for path in _PATH.findall(each.said)}
    removers = [
        each
        for each in case.witnesses
        if each not in missing and any(_takes(each.removed, path) for path in paths)
    ]
    if not removers:
        return None
    first = removers[0]
    why = f"{missing[0].reading.why} Before that, rank {first.rank} had written: {first.removed}."
    ranks = {each.rank for each in (*missing, *removers)}
    return Verdict(ranks, "undecided", Diagnosis(Kind.NO_FILE, why, _AGREE))


_PATH = re.compile(r"(?<=')[^'\n]*[./][^'\n]*(?=')")
_AGREE = (
    "No rank may remove or move a file that another rank has yet to read: put a barrier between "
    "the two, or keep one more file."
)


def _takes(said: str, path: str) -> bool:
    """Return whether these words name that file, or a folder of several parts that contains it."""
    named = [each for each in PATH_IN_WORDS.findall(said) if "/" in each or "." in each]
    return any(f"/{path}/".find(f"/{each.strip('./~')}/") >= 0 for each in named)


def _of_makers(makers: Sequence[RankReport], lack: str) -> Verdict:
    """Judge ranks that said they could not make a file, which others lack."""
    first = makers[0]
    known = diagnose_words([first.unmade], "")
    why = f"{_ranks(makers)} could not create a file, and continued ({first.unmade}). {lack}"
    kind = known.kind if known else Kind.NO_FILE
    certainty: Certainty = "likely" if len(makers) == 1 else "undecided"
    return Verdict([each.rank for each in makers], certainty, Diagnosis(kind, why, _TELL))


_TELL = (
    "Its output says why it could not. Let such an error end the rank, or tell the others whether "
    "the file exists, for example by a broadcast, before they look for it."
)


def _names(witness: RankReport) -> set[str]:
    """Return the names of files that it did not find, or for which it gave up waiting."""
    if witness.reading.kind is not Kind.NO_FILE and not _GAVE_UP.search(witness.said):
        return set()
    return {name.rpartition("/")[2] for name in _FILE.findall(witness.said)}


_FILE = re.compile(r"(?<=')[^'\n]+(?=')|[\w./-]*[\w-]\.[A-Za-z]\w*")


def _is_named(name: str, said: str) -> bool:
    return bool(name) and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", said) is not None


def gave_up_waiting(case: Incident) -> Verdict | None:
    """Judge a round in which most ranks gave up waiting for something of their own, in the same
    way, while the others were at work elsewhere, outside of collectives.
    """
    own, still = case.own, [each for each in case.away if not _waits(each)]
    is_most = len(own) > len(still) > 0 and len(own) + len(still) == len(case.witnesses)
    if not is_most or len({each.alike for each in own}) > 1 or not _GAVE_UP.search(own[0].said):
        return None
    if {_place(each) for each in own} & {_place(each) for each in still}:
        return None
    why = f"{format_ranks([each.rank for each in own])} gave up waiting ({own[0].said}), while "
    why += f"{'; '.join(map(does, still[:_MOST_SHOWN]))}: most likely for the result of that."
    return Verdict([each.rank for each in still], "likely", _absent(still, why, _LONGER))


_GAVE_UP = re.compile(r"^(?:\w+\.)*(?:Timeout\w*|\w*Timeout(?:Error)?)\b")
_LONGER = (
    "See what takes so long there, and whether it ends; wait longer than that, or in a collective "
    "with a suitable timeout (barrier, broadcast)."
)


def _place(witness: RankReport) -> str:
    return witness.standing.place if witness.standing else ""
