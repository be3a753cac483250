"""Judges failures of ranks that could not get what another process held, mostly locks. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torshrun.failure.incident import Incident, call_of
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.wording import Verdict, where_it_waits

_CANNOT = r"(?:could not|cannot|can't|couldn't|unable to|failed to|failure to) "
_OF_LOCK = re.compile(
    r"\b(?:is|are|already|been) locked\b|\block\b.{0,200}\bnot be (?:acquired|obtained|taken)|"
    rf"{_CANNOT}(?:acquire|obtain|get|take)\b.{{0,80}}\block|"
    rf"{_CANNOT}lock\b(?! (?:the )?(?:memory|pages))|"
    r"\block\b.{0,80}\b(?:held by|is held|was held)\b|"
    r"\bAlreadyLocked|\bLockException|\bLock(?:Timeout|Error)\b|"
    r"\block wait timeout\b|\block timeout\b",
    re.IGNORECASE,
)
_HELD = re.compile(
    r"\bBlockingIOError\b|\[Errno (?:11|16|26|35)\]|[Rr]esource temporarily unavailable|"
    r"\b(?:EAGAIN|EWOULDBLOCK|EBUSY|ETXTBSY)\b|[Rr]esource busy|Text file busy|devices are busy"
)
"""A limit of processes is the user's, and so may be reached by other ranks as well."""
_LOCKS = re.compile(r"\b(?:flock|lockf|\w*[Ll]ock(?:_ex|_file)?|acquire)\(")
_LAST = 8  # lines of a traceback in which the call stands


def says_held(said: str) -> bool:
    """Return whether this error says that what was wanted is held by somebody else."""
    return bool(_OF_LOCK.search(said) or _HELD.search(said))


def diagnose_lock(said: str, lines: Sequence[str]) -> Diagnosis | None:
    """Return what an error, with its traceback's lines, shows if it is about a lock, else None."""
    by_call = _HELD.search(said) and any(map(_LOCKS.search, lines[-_LAST:]))
    return Diagnosis(Kind.EXCEPTION, _WHY, _LET_GO) if by_call or _OF_LOCK.search(said) else None


_WHY = "It could not get a lock that another process held."
_LET_GO = (
    "See which process holds it, and for how long. No rank should wait for others, in a barrier or "
    "any collective, while it holds a lock or has a transaction open; let one rank write for all, "
    "or wait longer (a timeout)."
)


def contended_lock(case: Incident) -> Verdict | None:
    """Judge ranks that could not have what another rank held: it may have held that for too long,
    or they did not wait for long enough.
    """
    wanting = [each for each in case.own if says_held(each.said) and each.rival in case.by_rank]
    if not wanting or len(wanting) < len(case.own):
        return None
    first, holder = wanting[0], case.by_rank[wanting[0].rival]
    ranks = {rank for each in wanting for rank in (each.rank, each.rival)}
    if holder is first or not call_of(holder):
        return Verdict(ranks, "undecided", first.reading)
    why = f"{first.reading.why} Meanwhile rank {holder.rank} waited in {where_it_waits(holder)}."
    return Verdict(ranks, "undecided", first.reading._replace(kind=Kind.DEADLOCK, why=why.strip()))
