"""Derives from the ends of a node's workers what is known of each, and the root cause. Pure."""

from __future__ import annotations

import re
import signal
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
from torshrun.failure.ending_signals import SIGNALS
from torshrun.failure.error_patterns import USAGE
from torshrun.failure.exits import Exit, OomEvidence, how, where
from torshrun.failure.graph import find
from torshrun.failure.held_locks import diagnose_lock
from torshrun.failure.kinds import Diagnosis, Kind, of_ranks
from torshrun.failure.last_words import (
    CRASHES,
    Words,
    find_trace,
    last_words,
    said_last,
    shows_usage,
    stderr_lines,
)
from torshrun.failure.likeness import likeness
from torshrun.failure.rank_report import End, RankReport
from torshrun.failure.recognition import (
    crash_signal_in,
    diagnose_child_death,
    diagnose_frames,
    diagnose_words,
)
from torshrun.failure.root_cause import RootCause
from torshrun.failure.suspect import Suspect, from_words
from torshrun.failure.tables import in_a_line
from torshrun.failure.trails import NOTHING as NOTHING_RECORDED
from torshrun.failure.trails import Concluded
from torshrun.signals import signal_name
from torshrun.text import printable_lines, size

_LAST = 5  # lines of stderr that count where there is no traceback; surely but the last one
_LOST_CHILD = re.compile(
    r"killed by signal: Killed|terminated abruptly|SIGKILL|\bexit(?:ed with)? code:? (?:-9|137)\b"
)
_UNPICKLES = re.compile(r'/(?:comm/seal|distributed_c10d)\.py", line \d+, in (?:unpack|_tensor_to)')
_TO_CHILD = re.compile(
    r'/multiprocessing/(?:connection|queues|resource_sharer|managers)\.py", line'
)
_ON_RANK = re.compile(r"\b\w*rank\w*\b|\b(?:is_)?(?:main|master)(?:_process\w*)?\b|is_leader")
_WITHIN_LIBRARIES = re.compile(
    r"^(?:torsh_runtime|torch\.distributed)\.|^(?:TimeoutError|OSError|\w*Connection\w*Error)\b"
)
"""Errors that libraries raise theirs from."""
_LOST_PEER = Diagnosis(
    Kind.PEER_LOST,
    "It lost a peer or timed out waiting for one, and this node shows no cause.",
    "See how the other ranks ended, and whether the network between them broke.",
)
_UNSURE = " most likely (it counts such kills only for the whole machine)"
_TOLD_CHARS = 200


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
        is_unsure=_is_unsure(exit_),
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
    return errors[-1].split("\n")[0][:_TOLD_CHARS] if errors else ""


def _pauses(exit_: Exit, standing: BlockedAt | None) -> bool:
    """Return whether it only sleeps, again and again, although it had a processor just then."""
    return bool(standing and standing.pauses) or bool(_IS_IDLE.search(exit_.spied))


_IS_IDLE = re.compile(r"^.*\(idle\).*MainThread|^.*MainThread.*\(idle\)", re.MULTILINE)


def _end(exit_: Exit) -> End:
    if exit_.raised or exit_.hung or (exit_.failed and not exit_.stopped):
        return "failed"
    return "stopped" if exit_.stopped else "done"


def blamed(exit_: Exit) -> Suspect | None:
    """Return whom it blames, if its first error does, or a library's raised from others."""
    if exit_.hung or (exit_.signo and exit_.signo != signal.SIGABRT and not exit_.raised):
        return None
    if exit_.account.blame and (exit_.raised or not exit_.signo):
        return exit_.account.blame
    words = last_words(exit_)
    if exit_.signo and not exit_.raised:  # before it aborts, a library says why
        return from_words(words.lines)
    if words.errors and any(map(_UNPICKLES.search, words.lines)):
        return Suspect(
            how="unread", text=f"cannot read what a rank sent: {words.errors[-1]}"[:_TOLD_CHARS]
        )
    for error in words.errors:
        blame = from_words([error])
        if blame and blame.weak and any(map(_TO_CHILD.search, words.lines)):
            return None
        if blame and blame.weak and not blame.ranks and diagnose_words(words.errors, exit_.program):
            return None
        if blame or not _WITHIN_LIBRARIES.match(error):
            return blame
    if words.errors:
        return None
    return from_words(reversed(_last_lines(words))) or _blamed_before(exit_)


def _blamed_before(exit_: Exit) -> Suspect | None:
    """Return whom an exception blames that it had handled before it ended of its own accord."""
    trace = find_trace(stderr_lines(exit_)) if not exit_.signo else None
    blames = [from_words([error]) for error in trace.errors] if trace else []
    return blames[0] if blames and blames[0] and not blames[0].weak else None


def _last_lines(words: Words) -> tuple[str, ...]:
    """Return the lines that count where there is no traceback."""
    return (words.complaints or words.lines)[-_LAST:]


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


def diagnose(exit_: Exit) -> Diagnosis:
    """Return what a worker's end shows."""
    reading = _diagnose(exit_)
    return reading._replace(why=f"{reading.why} {exit_.facts}") if exit_.facts else reading


def _diagnose(exit_: Exit) -> Diagnosis:
    if exit_.hung:
        return Diagnosis(Kind.HUNG, exit_.hung)
    words = last_words(exit_)
    said = "\n".join(words.errors[-1:] or said_last(words)[-_LAST:])
    if exit_.stopped and not exit_.raised:
        return Diagnosis(Kind.STOPPED)
    killed = not exit_.raised and (exit_.signo == 9 or exit_.code == 137)
    if exit_.oom and (killed or _LOST_CHILD.search(said)):
        return _out_of_memory(exit_, exit_.oom)
    blame = blamed(exit_)
    if blame and blame.weak:
        return diagnose_words(words.errors or [said], exit_.program) or _LOST_PEER
    if blame and blame.how == "mismatch":
        return of_ranks(Kind.MISMATCH, "", blame.text, "")
    if blame:
        return _LOST_PEER
    if exit_.signo and not exit_.raised:
        return _diagnose_signal(exit_, words)
    impostor = exit_.rank or exit_.rival
    trace = "\n".join(words.lines)
    whole = f"{exit_.stderr.decode(errors='replace')}\n{trace}"
    if impostor > 0 and _SERVES_STORE.search(trace) and not _OF_CHILD.search(whole):
        return Diagnosis(Kind.USAGE, _TWICE_RANK_0.format(rank=impostor), _LEAVE_RANK)
    known = diagnose_lock(said, words.lines) if words.errors else None
    known = (
        known
        or diagnose_words(_texts(words), exit_.program)
        or diagnose_frames(words.errors, words.lines)
    )
    return known or _diagnose_child(exit_, words) or _diagnose_exit_code(exit_, words)


_SERVES_STORE = re.compile(
    r"rendezvous\.py\", line \d+, in _create_c10d_store\n(?:.*\n){0,12}?"
    r".*DistNetworkError: The server socket has failed to listen"
)
_OF_CHILD = re.compile(r"^-- Process \d+ terminated|RemoteTraceback", re.MULTILINE)
"""Matches what was raised by a rank's child processes, whose ranks differ from the rank's own."""
_TWICE_RANK_0 = (
    "Two ranks tried to serve the job's store, which only rank 0 may do: rank {rank} behaved as "
    "rank 0."
)
_LEAVE_RANK = (
    "See where the rank given to init_process_group(), or RANK in its environment, comes from: "
    "leave it to torshrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
)


def _texts(words: Words) -> list[str]:
    """Return the texts that may show a kind, the most telling one first."""
    if words.errors:
        return [*reversed(words.errors)]
    lines = said_last(words)[-_LAST:]
    return [*lines[-1:], "\n".join(lines)]


def _is_unsure(exit_: Exit) -> bool:
    """Return whether its words may be about something other than its end."""
    words = last_words(exit_)
    if exit_.hung or (exit_.signo and not exit_.raised):
        return False
    if words.errors:
        return words.is_handled
    known = diagnose_words(_texts(words), exit_.program)
    return known is not None and not diagnose_words(_texts(words)[:1], exit_.program)


def _diagnose_child(exit_: Exit, words: Words) -> Diagnosis | None:
    """Return the diagnosis of a child process that it communicated with and that was gone; None if
    there was none. The child's crash may show in the worker's output.
    """
    if not any(map(_TO_CHILD.search, words.lines)):
        return None
    return diagnose_child_death(crash_signal_in(exit_.stderr.decode("utf-8", "backslashreplace")))


def _diagnose_signal(exit_: Exit, words: Words) -> Diagnosis:
    if exit_.signo == signal.SIGABRT:
        if _AT_ITS_END.search("\n".join(words.lines)) and not words.frame:
            return Diagnosis(Kind.EARLY_EXIT, *_ENDED)
        said = diagnose_words(["\n".join(words.lines)], exit_.program)
        if said and said.kind in (Kind.ALLOCATION, Kind.GPU_MEMORY, Kind.SHARED_MEMORY):
            return said
    kind = Kind.CRASHED if exit_.signo in CRASHES else Kind.KILLED
    return Diagnosis(*SIGNALS.get(signal_name(exit_.signo), (kind,)))


_AT_ITS_END = re.compile(r"^terminate called without an active exception", re.MULTILINE)
_ENDED = (
    "It had reached its end while threads of a library were still running: no Python ran any more, "
    "and it would have returned exit code 0. It ended too early, before the other ranks or without "
    "closing its process groups.",
    "Find out why that script ended before the others: fewer batches, a return or "
    "sys.exit() on a condition. A barrier before the end keeps ranks together; "
    "destroy_process_group() ends the threads of torch's groups, unless something else keeps them.",
)


def _diagnose_exit_code(exit_: Exit, words: Words) -> Diagnosis:
    if shows_usage(exit_) and not words.errors:
        return Diagnosis(Kind.USAGE, *USAGE)
    if words.errors:
        return Diagnosis(Kind.EXCEPTION)
    name = signal_name(exit_.code - 128) if exit_.code > 128 else ""
    told = (
        f"A shell returns that code when {name} killed the command it ran."
        if name[:3] == "SIG"
        else ""
    )
    return Diagnosis(Kind.EXIT_CODE, told or _how_python_ended(exit_))


def _how_python_ended(exit_: Exit) -> str:
    """Return how its Python came to end with an exit code, without an exception; "" if unknown."""
    if exit_.ending.by == "exit" and exit_.ending.is_own:
        return "It ended itself by sys.exit() or SystemExit: its last lines may say why."
    if exit_.ending.is_watched and not exit_.ending.by:
        return (
            "Neither an exception nor sys.exit() ended its Python: os._exit() or compiled code "
            "did, or the process had executed another program."
        )
    return ""


def _out_of_memory(exit_: Exit, oom: OomEvidence) -> Diagnosis:
    limit, where = "the whole machine's", ""
    if oom.cgroup:
        limit = f"cgroup limit {size(oom.limit)}" if oom.limit else "a cgroup's limit"
        where = f" in {oom.cgroup}"
    peak = f", its peak was {size(exit_.peak_rss_kib << 10)}" if exit_.peak_rss_kib else ""
    who = "it" if exit_.signo else "one of its processes"
    surely = "" if oom.ours else _UNSURE
    return Diagnosis(
        Kind.OUT_OF_MEMORY,
        f"The kernel killed {who}{surely}: out of memory ({limit}{where}{peak}).",
        "Give the job more memory or a higher limit, or use less: smaller batches, fewer "
        "DataLoader workers, nothing kept from step to step.",
    )
