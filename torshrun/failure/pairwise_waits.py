"""Judges ranks that wait for one other rank: for a message of it, or for what it holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from torshrun.failure.incident import MESSAGES, Incident, call_of
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.rank_report import RankReport
from torshrun.failure.wording import Verdict, where_it_waits
from torshrun.text import format_ranks


def unmatched_messages(case: Incident) -> Verdict | None:
    """Judge messages that one rank waits for while the rank at their other end waits for something
    else, if all ranks that are known to wait are in a call.
    """
    waits = _awaited(case)
    pairs = {rank: peer for rank, peer in waits.items() if _is_unmet(case, waits, rank, peer)}
    if not pairs or case.away:
        return None
    ranks = {*pairs, *pairs.values()}
    lines = [_told(case, rank, peer) for rank, peer in sorted(pairs.items())[:_MOST_PAIRS]]
    behind = [each.rank for each in case.waiting if each.rank not in ranks]
    if behind:
        lines.append(f"Others ({format_ranks(behind)}) only wait for them.")
    kind = Kind.MISMATCH if all(map(_has_another, case.of(pairs.keys()))) else Kind.DEADLOCK
    return Verdict(ranks, "undecided", Diagnosis(kind, " ".join(lines), NO_COUNTERPART))


_MOST_PAIRS = 4
NO_COUNTERPART = (
    "Every send needs a recv of the other rank with the same tag, and the other way round: compare "
    "the peers and tags of both lines, and conditions under which one of them is skipped."
)


def lock_holder_waits(case: Incident) -> Verdict | None:
    """Find the rank that holds what another rank waits for, while it waits for others itself."""
    for each in case.away:
        holder = case.by_rank.get(each.holder)
        if holder is None or holder is each or not call_of(holder):
            continue
        why = f"A deadlock: rank {each.rank} waited for {each.awaits}: that is rank {holder.rank}, "
        why += f"which waited in {where_it_waits(holder)}."
        return Verdict({holder.rank}, "likely", Diagnosis(Kind.DEADLOCK, why, _LOCKS))
    return None


_LOCKS = (
    "No rank should wait for others, in a barrier or any collective, while it holds a lock that "
    "they want: release the lock first."
)


def _awaited(case: Incident) -> Mapping[int, int]:
    """Return the rank that each rank waits for in a message."""
    found = ((each.rank, each.standing) for each in case.waiting)
    return {rank: at.awaited for rank, at in found if at and at.awaited >= 0 and not at.doing}


def _is_unmet(case: Incident, waits: Mapping[int, int], rank: int, peer: int) -> bool:
    other = case.by_rank.get(peer)
    if other is None or other.end == "done" or not call_of(other):
        return False
    if peer not in waits:
        return call_of(other) not in MESSAGES
    ends = {call_of(case.by_rank[rank]).lstrip("i"), call_of(other).lstrip("i")}
    return waits[peer] == rank and ends == {"send", "recv"}


def _told(case: Incident, rank: int, peer: int) -> str:
    own, other = case.by_rank[rank], case.by_rank[peer]
    instead = own.standing.instead if own.standing else -1
    sent = f"had sent a message with tag={instead}, and " if instead >= 0 else ""
    return (
        f"rank {rank} waited in {where_it_waits(own)} for rank {peer}, which {sent}waited in "
        f"{where_it_waits(other)}."
    )


def _has_another(witness: RankReport) -> bool:
    """Return whether a message with a different tag has come instead."""
    return bool(witness.standing and witness.standing.instead >= 0)
