"""Diagnoses one worker's end: whom it blames, and what its words, signal or code show. Pure."""

from __future__ import annotations

import re
import signal

from torshrun.failure.ending_signals import SIGNALS
from torshrun.failure.error_patterns import USAGE
from torshrun.failure.exits import Exit, OomEvidence
from torshrun.failure.held_locks import diagnose_lock
from torshrun.failure.kinds import Diagnosis, Kind, of_ranks
from torshrun.failure.last_words import CRASHES, last_words, said_last, shows_usage, stderr_lines
from torshrun.failure.recognition import (
    crash_signal_in,
    diagnose_child_death,
    diagnose_frames,
    diagnose_words,
)
from torshrun.failure.suspect import Suspect, from_words
from torshrun.failure.tracebacks import Words, find_trace
from torshrun.signals import signal_name
from torshrun.text import size

_LAST = 5  # lines of stderr that count where there is no traceback; surely but the last one


_LOST_CHILD = re.compile(
    r"killed by signal: Killed|terminated abruptly|SIGKILL|\bexit(?:ed with)? code:? (?:-9|137)\b"
)


_UNPICKLES = re.compile(r'/(?:comm/seal|distributed_c10d)\.py", line \d+, in (?:unpack|_tensor_to)')


_TO_CHILD = re.compile(
    r'/multiprocessing/(?:connection|queues|resource_sharer|managers)\.py", line'
)


_WITHIN_LIBRARIES = re.compile(
    r"^(?:torsh_runtime|torch\.distributed)\.|^(?:TimeoutError|OSError|\w*Connection\w*Error)\b"
)
"""Errors that libraries raise theirs from."""


_LOST_PEER = Diagnosis(
    Kind.PEER_LOST,
    "It lost a peer or timed out waiting for one, and this node shows no cause.",
    "See how the other ranks ended, and whether the network between them broke.",
)


_OF_NCCL = re.compile(r"nccl|NCCL|remote process exited or there was a network error")
_LOST_OVER_NCCL = _LOST_PEER._replace(
    advice="See how the other ranks ended. If none failed, NCCL_DEBUG=INFO has NCCL say which "
    "network it chose and which call failed: see whether that link is up (ibstat, `ip link`).",
)


_UNSURE = " most likely (it counts such kills only for the whole machine)"


TOLD_CHARS = 200


def blamed(exit_: Exit) -> Suspect | None:
    """Return whom it blames, if its first error does, or a library's raised from others."""
    if exit_.hung or (exit_.signo and exit_.signo != signal.SIGABRT and not exit_.raised):
        return None
    if exit_.account.blame and (exit_.raised or exit_.gave_reason or not exit_.signo):
        return exit_.account.blame
    words = last_words(exit_)
    if exit_.signo and not exit_.raised:  # before it aborts, a library says why
        return from_words(words.lines)
    if words.errors and any(map(_UNPICKLES.search, words.lines)):
        return Suspect(
            how="unread", text=f"cannot read what a rank sent: {words.errors[-1]}"[:TOLD_CHARS]
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
        return _LOST_OVER_NCCL if _OF_NCCL.search(blame.text) else _LOST_PEER
    if exit_.signo and not (exit_.raised or exit_.gave_reason):
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


def is_unsure(exit_: Exit) -> bool:
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
