"""Derives from the ends of a node's workers what is known of each, and the root cause. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torshrun.failure.asides import (
    logged,
    muttered,
    numbers,
    removed,
    thread_error,
    unmade,
    warning,
)
from torshrun.failure.blocked_at import BlockedAt, from_stack, from_trace
from torshrun.failure.exit_diagnosis import TOLD_CHARS, blamed, diagnose, is_unsure
from torshrun.failure.exits import Exit, how, where
from torshrun.failure.graph import find
from torshrun.failure.kinds import Kind
from torshrun.failure.last_words import CRASHES, last_words, said_last
from torshrun.failure.likeness import likeness
from torshrun.failure.rank_report import End, RankReport
from torshrun.failure.root_cause import RootCause
from torshrun.failure.suspect import Suspect, from_words
from torshrun.failure.tables import in_a_line
from torshrun.failure.tracebacks import Words
from torshrun.failure.trails import NOTHING as NOTHING_RECORDED
from torshrun.failure.trails import Concluded
from torshrun.text import printable_lines

_ON_RANK = re.compile(r"\b\w*rank\w*\b|\b(?:is_)?(?:main|master)(?:_process\w*)?\b|is_leader")


class Explanation(NamedTuple):
    """Explains why a node's workers failed."""

    exits: tuple[Exit, ...]
    """The workers' ends, in the order in which they ended; those that hung are marked so."""
    cause: Exit | None
    """The one whose end counts as the round's; None if none failed."""
    finding: RootCause | None
    """The ranks to blame, as far as that is seen here; None if none failed."""
    witnesses: tuple[RankReport, ...]


NOTHING = Explanation((), None, None, ())


def explain(
    exits: Sequence[Exit], hang: str = "", node: int = 0, recorded: Concluded = NOTHING_RECORDED
) -> Explanation:
    """Explain why the workers of a node failed.

    `exits` are in the order in which they ended. `hang` describes in a line that they made no
    progress, "" if they did; `recorded` is what the ranks' recordings prove.
    """
    witnesses = tuple(witness(exit_, node) for exit_ in exits)
    finding = find(witnesses, hang=hang, recorded=recorded)
    if finding is None:
        return Explanation(tuple(exits), None, None, witnesses)
    if hang:
        exits = [_mark(exit_, finding, hang) for exit_ in exits]
    return Explanation(tuple(exits), counting(exits, finding), finding, witnesses)


def _mark(exit_: Exit, finding: RootCause, hang: str) -> Exit:
    return replace(exit_, hung=hang) if exit_.rank in finding.ranks else exit_


def counting(exits: Sequence[Exit], finding: RootCause) -> Exit | None:
    """Return the exit that counts as the round's: the first of those to blame, else of those that
    failed; None if none failed.
    """
    failed = [exit_ for exit_ in exits if exit_.failed]
    unasked = [exit_ for exit_ in failed if not exit_.stopped or exit_.raised or exit_.hung]
    blamed = sorted((exit_ for exit_ in unasked if exit_.rank in finding.ranks), key=_moment)
    return next(iter(blamed or unasked or failed), None)


def _said(exit_: Exit, words: Words) -> str:
    """Return its error: the last one of a chain that is not about others, as a clean-up's may."""
    if words.errors:
        own = [error for error in words.errors if not from_words([error])]
        return (own or words.errors)[-1]
    if exit_.signo and exit_.signo not in CRASHES:  # who is killed says nothing of that
        return ""
    return next(reversed(said_last(words)), "")


def _moment(exit_: Exit) -> float:
    """Return when it failed: a process that an exception ended may take long until it is gone."""
    noted = exit_.account.at or (0.0 if exit_.ending.in_flight else exit_.ending.at)
    return (noted if exit_.raised else 0.0) or exit_.at


def witness(exit_: Exit, node: int = 0) -> RankReport:
    """Return what is known of a worker's end."""
    end = _end(exit_)
    words = last_words(exit_)
    said = _said(exit_, words)
    standing = _standing(exit_, words, end)
    reading = diagnose(exit_)
    is_away = end == "stopped" and not (standing and standing.call)
    return RankReport(
        rank=exit_.rank,
        node=node,
        end=end,
        how=how(exit_),
        where=where(exit_),
        at=_moment(exit_),
        reading=reading,
        is_unsure=is_unsure(exit_),
        said=in_a_line(said.strip()),
        alike=likeness(exit_, words),
        blame=_within(blamed(exit_), exit_.ranks) if end == "failed" else None,
        call=exit_.account.call,
        standing=standing,
        peak=exit_.peak_rss_kib,
        versions=", ".join(f"{name} {it}" for name, it in exit_.account.versions.items()),
        thread=thread_error(exit_) if end == "stopped" else "",
        warning=warning(exit_),
        numbers=numbers(exit_) if reading.kind is Kind.NAN else None,
        looks_alone=bool(_ON_RANK.search(exit_.conditions)),
        child=exit_.child,
        handles=_handled(exit_) if end != "failed" else "",
        awaits=exit_.awaits if is_away else "",
        holder=exit_.holder if is_away else -1,
        rival=exit_.rival,
        mutters=muttered(exit_) if end == "stopped" else None,
        unmade=unmade(exit_),
        removed=removed(exit_),
        logged=logged(exit_),
        is_frozen=exit_.state in ("T", "t"),
        is_deaf=exit_.state == "D",
        is_busy=is_away and exit_.state == "R" and not _pauses(exit_, standing),
        hung=exit_.hung,
    )


def _within(blame: Suspect | None, ranks: int) -> Suspect | None:
    """Return `blame` without ranks that the job does not have: a worker may write anything."""
    if blame is None or not ranks:
        return blame
    calls = {rank: call for rank, call in blame.calls.items() if rank < ranks}
    return replace(blame, ranks=tuple(rank for rank in blame.ranks if rank < ranks), calls=calls)


def _handled(exit_: Exit) -> str:
    """Return the exception that it was handling when it was asked to stop, or left; "" is none."""
    is_known = exit_.ending.in_flight or exit_.ending.is_chosen
    errors = exit_.ending.errors if is_known else ()
    return errors[-1].split("\n")[0][:TOLD_CHARS] if errors else ""


def _pauses(exit_: Exit, standing: BlockedAt | None) -> bool:
    """Return whether it only sleeps, again and again, although it had a processor just then."""
    return bool(standing and standing.pauses) or bool(_IS_IDLE.search(exit_.spied))


_IS_IDLE = re.compile(r"^.*\(idle\).*MainThread|^.*MainThread.*\(idle\)", re.MULTILINE)


def _end(exit_: Exit) -> End:
    if exit_.raised or exit_.hung or (exit_.failed and not exit_.stopped):
        return "failed"
    return "stopped" if exit_.stopped else "done"


def _standing(exit_: Exit, words: Words, end: End) -> BlockedAt | None:
    noted = exit_.standing or exit_.account.recorded
    if end == "failed":
        seen = from_trace(words.lines) if not words.innermost_first else None
        seen = seen or from_stack("\n".join(words.lines))
    else:
        left = "\n".join(printable_lines(exit_.stack))
        seen = from_stack(left) or from_stack("\n".join(words.lines))
    spied = from_stack(exit_.spied) if seen and not seen.full else None
    if seen and spied and spied.call == seen.call:
        seen = replace(seen, full=spied.full, awaited=spied.awaited)
    if noted is None or seen is None:
        return noted or seen
    call = noted.call or seen.call
    return replace(
        noted,
        call=call,
        full=noted.full or seen.full or call,
        awaited=seen.awaited if noted.awaited < 0 and call == seen.call else noted.awaited,
        locks=seen.locks if not call else "",
        place=seen.place,
        line=seen.line,
        cleanup=seen.cleanup,
        waits_for=seen.waits_for if not call else "",
    )
