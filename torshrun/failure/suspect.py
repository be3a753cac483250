"""Finds whom a worker blames: by what it left in its error file, else by its words. Pure.

The words are those of torsh_runtime, torch's stores and process groups, Gloo, NCCL and JAX. Some
name ranks; most say only that some peer was lost or did not come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from torshrun.text import format_ranks, parse_ranges, printable

How = Literal["lost", "late", "mismatch", "unread"]
"""The manner in which others failed a rank.

lost: a peer's end, or that of its connection. late: somebody did not come in time. mismatch: ranks
called different things. unread: what another rank sent could not be read.
"""

TEXT_CHARS = 200
"""Characters of a text that is kept of a blame."""
SEARCHED_CHARS = 8192
"""Characters of each text that are looked at: patterns may take more than linear time."""
MOST_RANKS = 64
"""Ranks that a blame may name; one that names more names nobody."""
LARGEST_RANK = 1 << 24
_NONE: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Holds what one worker says of others."""

    how: How
    ranks: tuple[int, ...] = ()
    """The ranks of the job that it blames; () if it does not say."""
    op: str = ""
    """The operation that it was in: "all_reduce"; "" is unknown."""
    calls: Mapping[int, str] = field(default_factory=lambda: _NONE, hash=False)
    """The calls of ranks in a mismatch."""
    text: str = ""
    """The worker's own words for it, for people."""
    weak: bool = False
    """True if what it speaks of may well be its own failure."""
    came: int = 0
    """The number of bytes that came in a mismatch that names nobody, or of ranks that came to a
    rendezvous; 0 is unknown.
    """
    room: int = 0
    """The number of bytes that there was room for, or of ranks that were waited for."""


def from_account(document: object) -> Suspect | None:
    """Return the blame in a worker's error file.

    None if it makes no sense: a worker may write anything.
    """
    if not isinstance(document, dict) or document.get("how") not in get_args(How):
        return None
    ranks, calls = document.get("ranks"), document.get("calls", {})
    if not isinstance(ranks, list) or not all(map(_is_rank, ranks)) or not isinstance(calls, dict):
        return None
    told = {int(rank): _short(call) for rank, call in calls.items() if _is_call(rank, call)}
    if len(ranks) > MOST_RANKS or len(told) > MOST_RANKS:
        return None
    how, op, whom = document["how"], _short(document.get("op")), tuple(sorted(set(ranks)))
    return Suspect(how=how, ranks=whom, op=op, calls=told, text=_told(how, op, whom, told))


def _told(how: How, op: str, whom: tuple[int, ...], calls: Mapping[int, str]) -> str:
    """Return what torsh_runtime's error said, with ranks of the job."""
    who = format_ranks(whom) if whom else "a peer"
    if how == "mismatch":
        return ", ".join(f"rank {rank}: {call}" for rank, call in calls.items())
    during = f" in {op}" if op else ""
    return f"lost {who}{during}" if how == "lost" else f"timed out{during} waiting for {who}"


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST_RANK


def _is_call(rank: object, call: object) -> bool:
    named = isinstance(rank, str) and re.fullmatch(r"[0-9]{1,7}", rank)
    return bool(named) and isinstance(call, str)


def _short(value: object) -> str:
    return printable(value[:TEXT_CHARS]) if isinstance(value, str) else ""


def from_words(texts: Iterable[str]) -> Suspect | None:
    """Return whom an error, or lines that a worker wrote, blame; None if nobody."""
    for text in texts:
        for pattern in _PATTERNS:
            found = pattern.words.search(text[:SEARCHED_CHARS])
            if found:
                return _blame(pattern, found)
    return None


def _blame(pattern: _Pattern, found: re.Match[str]) -> Suspect:
    facts = found.groupdict()
    named = facts.get("ranks") or facts.get("rank") or ""
    ranks = _ranks(named) if named else pattern.ranks
    return Suspect(
        how=pattern.how,
        ranks=ranks,
        op=(facts.get("op") or "").lower(),
        calls=_calls(facts),
        text=_short(found[0]),
        weak=pattern.weak,
        came=int(facts.get("came") or 0),
        room=int(facts.get("room") or 0),
    )


def _ranks(text: str) -> tuple[int, ...]:
    try:
        found = parse_ranges(text)
    except ValueError:
        return ()
    return tuple(sorted(found)) if len(found) <= MOST_RANKS else ()


def _calls(facts: Mapping[str, Any]) -> Mapping[int, str]:
    pairs = ((facts.get(f"rank{n}"), facts.get(f"call{n}")) for n in "12")
    return {int(rank): _short(call) for rank, call in pairs if rank and call}


class _Pattern(NamedTuple):
    how: How
    words: re.Pattern[str]
    """A pattern with groups for the ranks that it names, for the operation, and for two calls."""
    ranks: tuple[int, ...] = ()
    """The ranks that it blames if it names nobody."""
    weak: bool = False


def _says(how: How, *words: str, ranks: tuple[int, ...] = (), weak: bool = False) -> _Pattern:
    """Return a pattern of alternatives, in which RANK stands for a rank and RANKS for several."""
    text = "|".join(words).replace("RANKS", _LIST).replace("RANK", r"[0-9]{1,7}")
    return _Pattern(how, re.compile(text), ranks, weak)


_LIST = r"[0-9][0-9, ]*(?<! )(?<!,)"
_TORSH = (
    _says(
        "mismatch",
        r"ranks disagree(?![^:]{0,99} of axis )[^:]{0,399}: "
        r"rank (?P<rank1>RANK) called (?P<call1>.{1,999}?), "
        r"rank (?P<rank2>RANK) called (?P<call2>.{1,999}?)\. Every rank",
    ),
    _says(
        "mismatch",
        r"ranks disagree[^:(]{0,99} of axis [^:(]{1,99}\(rank (?P<rank1>RANK)\b[^:;]{0,99}; "
        r"rank (?P<rank2>RANK)\b[^:;]{0,99}\): rank RANK called (?P<call1>.{1,999}?), "
        r"rank RANK called (?P<call2>.{1,999}?)\. Every rank",
    ),
    _says("lost", r"\brank (?P<rank>RANK) was lost during (?P<op>\w+)"),
    _says(
        "lost",
        r"\brank RANK of [^:(]{1,99} was lost during (?P<op>\w+)[^:]{0,99}: "
        r"[^(]{0,99}\(rank (?P<rank>RANK)\b",
    ),
    _says(
        "late",
        r"\b(?P<op>\w+)(?: \(operation \d+ of the group\))? timed out after [\d.e+]+ s "
        r"waiting for rank\(s\) (?P<ranks>RANKS)",
    ),
    _says("lost", r"\brank (?P<rank>RANK) aborted the group during (?P<op>\w+)"),
    _says("lost", r"\brank (?P<rank>RANK) gave up joining the group"),
    _says("lost", r"^torsh_runtime\.errors\.(?:PeerLost|CommAborted)\b"),
    _says("late", r"^torsh_runtime\.errors\.CommTimeout\b", r"timed out after [\d.e+]+ s, and it"),
)
_TORCH = (
    _says(
        "mismatch",
        r"Rank (?P<rank1>RANK) is running collective: "
        r"CollectiveFingerPrint\((?P<call1>.{0,999}?)\), "
        r"but Rank (?P<rank2>RANK) is running collective: "
        r"CollectiveFingerPrint\((?P<call2>.{0,999}?)\)\.",
    ),
    _says(
        "mismatch",
        r"same model across all ranks, but Rank (?P<rank1>RANK) has (?P<call1>\d+ params), "
        r"while rank (?P<rank2>RANK) has inconsistent (?P<call2>\d+ params)",
    ),
    _says(
        "mismatch",
        r"params?\[\d+\] in this process with .* appears not to match .* process (?P<rank>RANK)",
    ),
    _says("late", r"\[Rank RANK\]: Ranks? (?P<ranks>RANKS) failed to pass monitoredBarrier"),
    _says("lost", r"monitoredBarrier, but received errors .* from rank (?P<rank>RANK)"),
    _says(
        "late", r"waiting for clients\. (?P<came>[0-9]{1,7})/(?P<room>[0-9]{1,7}) clients joined"
    ),
    _says("late", r"wait timeout after \d+ms, keys: \S*/(?:cpu|cuda)//\d+/(?P<rank>RANK)\b"),
    _says("late", r"wait timeout after \d+ms, keys: \S*default_pg/0//"),
    _says(
        "lost",
        r"failed to recv, got 0 bytes",
        r"Did the remote server shutdown",
        r"(?:sendBytes|recvVector|recvValue|recv) failed",
        ranks=(0,),  # whose process serves torch's store
    ),
)
_GLOO_AND_NCCL = (
    _says(
        "mismatch",
        r"op\.preamble\.length <= op\.nbytes\. (?P<came>[0-9]{1,15}) vs (?P<room>[0-9]{1,15})\b",
        r"Received data size doesn't match expected size",
        r"Message truncated",
        r"MPI_ERR_TRUNCATE",
    ),
    _says(
        "lost",
        r"(?<=\] )Connection closed by peer(?= \[)",
        r"Read error (?=\[.*reset by peer)",
        r"Write error (?=\[)",
    ),
    _says("late", r"Timed out waiting \d+ms for (?:recv|send) operation"),
    _says("late", r"Application timeout caused pair closure"),
    _says("late", r"ranks? \[(?P<ranks>RANKS)\] are the lagging ranks"),
    _says("late", r"\[(?P<ranks>RANKS)\] .*but didn't join collective"),
    _says("lost", r"(?:timeout|dump signal|exception) .*from rank (?P<rank>RANK)\b"),
    _says("late", r"Watchdog caught collective operation timeout: \w+\(.*?OpType=(?P<op>\w+)"),
    _says(
        "lost",
        r"remote process exited or there was a network error",
        r"[Cc]onnection closed by remote peer",
        r"ncclRemoteError",
        r"NCCL communicator was aborted",
    ),
)
_JAX = (
    _says("lost", r"task:(?P<rank>RANK).*(?:heartbeat|disconnect|crash|died)"),
    _says("late", r"did not (?:reach|arrive).*task:(?P<rank>RANK)"),
)
_SOCKETS = (
    _says(
        "lost",
        r"[Cc]onnection (?:was )?(?:closed|reset) by peer",
        r"^(?:BrokenPipe|ConnectionReset|ConnectionAborted)Error",
        r"Broken pipe",
        r"Socket (?:is )?closed",
        weak=True,  # there are other sockets than those between ranks
    ),
    _says(
        "late",
        r"client socket has (?:timed out|failed)",
        r"[Ff]ailed to connect to .*[Ss]tore",
        ranks=(0,),
        weak=True,
    ),
)
_PATTERNS = (*_TORSH, *_TORCH, *_GLOO_AND_NCCL, *_JAX, *_SOCKETS)
