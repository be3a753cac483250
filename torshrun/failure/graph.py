"""Finds who is to blame, from what is known of all ranks: the blame graph. Pure.

A rank that failed and blames nobody is a cause. The others point at ranks, by what their errors
name and by the collectives that they were in; who is pointed at and points at nobody is to blame.
Where that leads in a circle, or to several without more evidence, nobody can tell, and that is
said: it is worse to be sure and wrong.

Moments are compared within a node only; between nodes the order of their reports in the store
counts, and that only for who is named first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torsh_runtime.monitoring.flight import in_words, named
from torshrun.failure import (
    disagreement,
    group_creation,
    held_locks,
    lost_nodes,
    manual_barriers,
    missing_files,
    missing_ranks,
    own_failures,
    pairwise_waits,
    relayed,
)
from torshrun.failure.incident import Incident, call_of
from torshrun.failure.kinds import Kind, of_ranks
from torshrun.failure.rank_report import RankReport, Silent
from torshrun.failure.root_cause import MOST_EVIDENCE, Certainty, RootCause
from torshrun.failure.trails import NOTHING, Concluded
from torshrun.failure.wording import (
    Verdict,
    differ,
    evidence,
    manner_of,
    told,
    with_backward,
    with_debugging,
)
from torshrun.text import format_ranks


def find(
    witnesses: Sequence[RankReport],
    silent: Sequence[Silent] = (),
    hang: str = "",
    recorded: Concluded = NOTHING,
) -> RootCause | None:
    """Return the root cause; None if nothing failed.

    `hang` describes in a line that there was no progress, "" if there was some; `recorded` is what
    the recordings of the ranks' operations prove.
    """
    case = Incident(tuple(witnesses), tuple(silent), hang, recorded)
    if not case.failed and not silent and not hang:
        return None
    verdict = next(filter(None, (judge(case) for judge in _JUDGES)))
    return RootCause(
        ranks=tuple(sorted(verdict.ranks)),
        nodes=tuple(sorted(verdict.nodes)),
        certainty=verdict.certainty,
        reading=with_backward(with_debugging(case, verdict.reading)),
        how=manner_of(case, verdict),
        evidence=(*recorded.lines, *evidence(case, verdict))[:MOST_EVIDENCE],
    )


# ---- judges: each gives a verdict, or leaves it to the next


def _frozen(case: Incident) -> Verdict | None:
    """Blame ranks whose processes were stopped."""
    frozen = {each.rank for each in case.witnesses if each.is_frozen}
    if not frozen:
        return None
    others = [each for each in case.witnesses if each.rank not in frozen]
    waited = all(each.end == "done" or each.blame or call_of(each) for each in others)
    return Verdict(frozen, "certain" if waited else "likely", told(case, Kind.FROZEN, frozen))


def _astray(case: Incident) -> Verdict | None:
    """Blame ranks that made a different call from most others, by the recordings."""
    found = case.recorded.culprit
    if found is None or not found.is_by_most or not {*found.ranks} <= case.by_rank.keys():
        return None
    groups = case.recorded.told.groups
    calls = {rank: named(found.operation, groups) for rank in found.agreeing}
    calls |= {rank: named(each, groups) for rank, each in found.last.items()}
    reading = differ(found.ranks, calls)
    if found.kind == "astray":  # others have called that each in its groups
        line = in_words(found, told=case.recorded.told)
        reading = of_ranks(Kind.MISMATCH, format_ranks(found.ranks), line, "")
    return Verdict(found.ranks, "likely", reading)


def _left(case: Incident) -> Verdict | None:
    """Blame ranks that ended well while others still needed them."""
    lost = case.claims("lost")
    done = {each.rank for each in case.witnesses if each.end == "done"}
    if not done or not (lost or (case.followers and not case.away)):
        return None
    return missing_ranks.ended_too_early(case, done)


def _weak(case: Incident) -> Verdict | None:
    """Blame a rank whose failure may well be its own, although it mentions others."""
    weak = [each for each in case.followers if each.blame and each.blame.weak]
    muttering = [each for each in case.witnesses if each.end == "stopped" and each.mutters]
    return _suspected(case, weak or muttering)


def _alone(case: Incident) -> Verdict | None:
    """Blame a rank that failed while the others did well."""
    return _suspected(case, case.followers)


def _suspected(case: Incident, suspects: Sequence[RankReport]) -> Verdict | None:
    if not suspects or len(suspects) == len(case.witnesses) > 1:
        return None
    certainty: Certainty = "likely" if len(suspects) == 1 else "undecided"
    reading, ranks = suspects[0].reading, [each.rank for each in suspects]
    if reading.kind in (Kind.PEER_LOST, Kind.STOPPED):
        meets = call_of(suspects[0]) == "init_process_group"
        why = group_creation.NOT_MET if meets else "no end of another rank explains that"
        reading = of_ranks(Kind.NETWORK, format_ranks(ranks), "", "", why)
    return Verdict(ranks, certainty, reading)


def _unexplained(case: Incident) -> Verdict:
    """Judge a round about which nothing more is known."""
    if case.hang:
        return _no_progress(case)
    ranks = [each.rank for each in case.failed]
    certainty: Certainty = "likely" if len(ranks) == 1 else "undecided"
    return Verdict(ranks, certainty, min(case.failed, key=lambda each: each.at).reading)


def _no_progress(case: Incident) -> Verdict:
    """Judge ranks that hang, each on its own: if all do the same it is no rank's fault."""
    ranks = [each.rank for each in case.witnesses if each.end != "done"]
    reading = of_ranks(Kind.HUNG, format_ranks(ranks), "", "", f"something unknown ({case.hang})")
    if len(ranks) == 1:
        return Verdict(ranks, "likely", reading)
    known = all(each.standing for each in case.of(ranks))
    alike = known and case.do_the_same(ranks) and not case.waiting
    return Verdict(() if alike else ranks, "likely" if alike else "undecided", reading)


_JUDGES: Sequence[Callable[[Incident], Verdict | None]] = (
    missing_files.creation_failed,
    missing_files.removed_too_early,
    missing_files.gave_up_waiting,
    held_locks.contended_lock,
    manual_barriers.barrier_gave_up,
    relayed.relayed,
    own_failures.own_failure,
    _frozen,
    _astray,
    disagreement.disagreement,
    disagreement.unread,
    missing_ranks.in_cleanup,
    pairwise_waits.lock_holder_waits,
    manual_barriers.barrier_still_waits,
    missing_files.never_created,
    missing_files.unset_key,
    missing_ranks.blamed_by_others,
    _left,
    lost_nodes.silent_nodes,
    pairwise_waits.unmatched_messages,
    missing_ranks.circular_wait,
    missing_ranks.absent_ranks,
    _weak,
    group_creation.stuck_group_creation,
    missing_ranks.different_collectives,
    _alone,
    _unexplained,
)
