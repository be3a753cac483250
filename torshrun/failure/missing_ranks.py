"""Judges ranks that others wait for or lost: who did not come, and who waits for whom. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from torshrun.failure.blocked_at import IN_RETRY
from torshrun.failure.disagreement import odd_one
from torshrun.failure.group_creation import different_groups
from torshrun.failure.incident import MESSAGES, Incident, call_of, comparable
from torshrun.failure.kinds import Diagnosis, Kind, of_ranks
from torshrun.failure.lost_nodes import lost_nodes, ranks_of
from torshrun.failure.pairwise_waits import NO_COUNTERPART, unmatched_messages
from torshrun.failure.rank_report import RankReport
from torshrun.failure.recognition import diagnose_words
from torshrun.failure.root_cause import Certainty
from torshrun.failure.wording import Verdict, differ, full_call, listed, told, where_it_waits
from torshrun.procfs import UNREAD
from torshrun.text import format_ranks


def blamed_by_others(case: Incident) -> Verdict | None:
    """Judge ranks that others point at, and that point at nobody."""
    ends = case.ends
    if not ends:
        return None
    gone = [each for each in case.silent if ends & {*each.ranks}]
    if gone:
        return lost_nodes(case, gone, "likely" if ends - ranks_of(gone) else "certain")
    waiting = {each.rank: call_of(each) for each in case.of(ends) if call_of(each)}
    if waiting.keys() == ends:
        return _in_another(case, waiting)
    ends = ends - waiting.keys()  # they may wait for the others
    done = {each.rank for each in case.of(ends) if each.end == "done"}
    if done == ends:
        # Or those who need them went on for too long: nobody can be sure.
        return ended_too_early(case, ends)
    if not case.of(ends) and case.claims("lost"):
        who = format_ranks(ends)
        return Verdict(ends, "likely", of_ranks(Kind.NODE_LOST, who, "", "", _UNHEARD))
    return Verdict(ends, "likely", _why_absent(case, ends))


def ended_too_early(case: Incident, done: Collection[int]) -> Verdict:
    """Judge ranks that ended well while others still needed them. If only one rank continues after
    that, it has most likely made a call too many.
    """
    left = [each for each in case.witnesses if each.end != "done"]
    if len(left) == 1 < len(done) and call_of(left[0]):
        return Verdict({left[0].rank}, "likely", _alone_in(left[0], done))
    return Verdict(done, "likely", told(case, Kind.EARLY_EXIT, done))


def _alone_in(witness: RankReport, done: Collection[int]) -> Diagnosis:
    """Describe a rank that makes a call after all others have ended well."""
    why = (
        f"rank {witness.rank} alone continued, and waited in {where_it_waits(witness)} for others, "
    )
    why += f"but {format_ranks(done)} had finished the program with exit code 0."
    return Diagnosis(Kind.MISSING, why, _TO_ALL)


_TO_ALL = (
    "Every rank must call the same collectives: look for a condition on the rank around "
    "that line, or for more steps on this rank than on the others (uneven data; drop_last, or "
    "DDP's join())."
)


def in_cleanup(case: Incident) -> Verdict | None:
    """Judge ranks that were in a clean-up while the others still waited in what comes before it."""
    there = {each.rank for each in case.witnesses if each.standing and each.standing.cleans}
    ranks = {rank for rank in there if case.by_rank[rank].end == "stopped"}
    waiting = [each.rank for each in case.waiting if each.rank not in there]
    if not ranks or not waiting:
        return None
    who, (call, *_) = format_ranks(ranks), [call_of(case.by_rank[rank]) for rank in waiting]
    why = f"{who} was in a clean-up (finally or except), while {format_ranks(waiting)} waited in "
    why += f"{call}: most likely an exception ended its work, which it could not report yet."
    return Verdict(ranks, "likely", Diagnosis(Kind.EXCEPTION, why, _LET_IT_OUT))


_LET_IT_OUT = (
    "Look for what may raise before that line. A clean-up should not wait for other ranks in a "
    "barrier or collective: they do not arrive, and the exception is shown only afterwards; "
    "traceback.print_exc() there shows it at once."
)


def _in_another(case: Incident, ends: Mapping[int, str]) -> Verdict:
    """Judge ranks that others wait for, and that were in a collective themselves."""
    pointing = {each.rank: call_of(each) for each in case.of(case.edges.keys())}
    calls = {**pointing, **ends}
    if MESSAGES & {*calls.values()}:
        return unmatched_messages(case) or _mutual(case, calls, calls)
    if "new_group" in ends.values():
        return different_groups(case)
    if set(ends.values()) <= set(pointing.values()):  # they came, and too late
        return Verdict(ends, "likely", _why_absent(case, ends.keys()))
    odd = odd_one(calls)
    if odd is not None:
        return Verdict({odd}, "likely", differ({odd}, calls))
    return Verdict(calls, "undecided", differ(calls, calls))


_UNHEARD = "others lost it, and nothing is known of its node"


def circular_wait(case: Incident) -> Verdict | None:
    """Judge ranks that point at each other."""
    ranks = case.circles
    if not ranks:
        return None
    knots = case.knots
    if len(knots) == 1:
        return Verdict(knots, "likely", told(case, Kind.MISSING, knots))
    votes = Counter(rank for whom in case.edges.values() for rank in whom)
    (first, most), *rest = votes.most_common(2)
    if most > 1 and (not rest or rest[0][1] < most) and first in ranks:
        return Verdict({first}, "likely", told(case, Kind.MISSING, {first}))
    calls = {each.rank: call_of(each) for each in case.of(ranks)}
    return _mutual(case, ranks, calls)


def _mutual(case: Incident, ranks: Collection[int], calls: Mapping[int, str]) -> Verdict:
    """Judge ranks that wait for each other, in these calls."""
    names = set(calls.values())
    who, what = format_ranks(ranks), listed(calls)
    told_calls = {each.rank: comparable(each.call) for each in case.of(ranks)}
    if all(told_calls.values()) and len({*told_calls.values()}) > 1:
        return Verdict(ranks, "undecided", differ(ranks, told_calls))
    if len(names) > 1 and not names & MESSAGES:
        return Verdict(ranks, "undecided", differ(ranks, calls))
    if len(names) == 1:
        for known in (_seen(case, ranks), _in_groups(case, ranks)):
            if len({*map(comparable, known.values())}) > 1:
                odd = odd_one(known)
                unlike = ranks if odd is None else {odd}
                certainty: Certainty = "undecided" if odd is None else "likely"
                return Verdict(unlike, certainty, differ(unlike, known))
    alike = case.do_the_same(ranks)
    if alike and not names <= MESSAGES:
        return Verdict(ranks, "undecided", of_ranks(Kind.NETWORK, who, "", "", _NOTHING_ARRIVES))
    if not alike and len(names) == 1:
        what = listed({each.rank: where_it_waits(each) for each in case.of(ranks)})
    deadlock = of_ranks(Kind.DEADLOCK, who, "", "each other", what)
    return Verdict(ranks, "likely" if alike else "undecided", deadlock)


def _seen(case: Incident, ranks: Collection[int]) -> Mapping[int, str]:
    """Return the calls of `ranks`, as their stacks show them; {} if one does not."""
    found = {each.rank: full_call(each) for each in case.of(ranks) if _is_seen(each)}
    return found if found.keys() == {*ranks} else {}


def _in_groups(case: Incident, ranks: Collection[int]) -> Mapping[int, str]:
    """Return the calls of `ranks` with the groups in their lines; {} if one does not show it."""
    stands = [(each.rank, each.standing) for each in case.of(ranks)]
    found = {rank: at.in_group for rank, at in stands if at and at.group < 0 and at.in_group}
    return found if found.keys() == {*ranks} else {}


def _is_seen(witness: RankReport) -> bool:
    """Return whether its call, with what all ranks give to it alike, is known by its stack."""
    standing = witness.standing
    return bool(standing and standing.group < 0 and comparable(standing.full) == standing.full)


_NOTHING_ARRIVES = (
    "they were in the same collective, and their messages do not arrive, or too slowly"
)


def absent_ranks(case: Incident) -> Verdict | None:
    """Judge ranks that were outside of the collectives that others waited in."""
    away = {each.rank for each in case.away}
    if not away or not (case.waiting or case.claims("late")):
        return None
    return Verdict(away, "likely", _why_absent(case, away))


def _why_absent(case: Incident, ranks: Collection[int]) -> Diagnosis:
    """Return what kept ranks from a collective that others waited in."""
    found = case.of(ranks)
    thread = next((each.thread for each in found if each.thread), "")
    if thread:
        reading, known = told(case, Kind.EXCEPTION, ranks, thread), diagnose_words([thread], "")
        return reading._replace(kind=known.kind, advice=known.hint) if known else reading
    if any(each.is_deaf for each in found):
        return told(case, Kind.HUNG, ranks, "something in the kernel, in state D")
    awaited = next((each.standing.waits_for for each in found if each.standing), "")
    thing = next((each.awaits for each in found if each.awaits), "")
    locks = next((each.standing.locks for each in found if each.standing), "")
    in_the_way = next(filter(None, map(_in_the_way, found)), "")
    if awaited == "a lock file" or in_the_way:
        return told(case, Kind.HUNG, ranks, in_the_way or f"{awaited}, {_LEFT_BEHIND}")
    if awaited == "a lock" and not thing:
        what = f"{_LOCKS}: {locks}" if locks else awaited
        told_of = told(case, Kind.HUNG, ranks, what)
        return Diagnosis(Kind.DEADLOCK, told_of.why, _LOCK_ORDER)
    thing = thing or awaited
    child = next((each.child for each in found if each.child), "")
    if child:
        is_mutual = UNREAD in child and awaited == "another process"
        reading = told(case, Kind.HUNG, ranks, f"{thing or 'something'}; {child}")
        return reading._replace(kind=Kind.DEADLOCK) if is_mutual else reading
    if found and all(each.is_busy for each in found):
        return told(case, Kind.SLOW, ranks)
    return told(case, Kind.HUNG if thing else Kind.MISSING, ranks, thing)


def _in_the_way(witness: RankReport) -> str:
    """Return the file that it tries to make again and again, but that exists; "" is none."""
    tries = witness.standing and witness.standing.cleanup == IN_RETRY
    found = _IS_THERE.search(witness.handles) if tries else None
    return f"the file {found[1]} to go away, {_LEFT_OR_HELD}" if found else ""


_LEFT_OR_HELD = "which another process has created, or a killed process has left behind"
_IS_THERE = re.compile(r"^FileExistsError: .*: ('[^'\n]+')$")
_LOCKS = "locks that its own threads hold, most likely each the other's"
_LOCK_ORDER = (
    "Take locks in the same order in all threads, and release them before a collective, a fork "
    "and a call that takes other locks; acquire(timeout=) shows which thread cannot get one."
)
_LEFT_BEHIND = "which a killed process may have left behind"


def different_collectives(case: Incident) -> Verdict | None:
    """Judge ranks that waited in different collectives, or for each other."""
    # Who is ahead of others is not the one who keeps them waiting.
    behind = [each for each in case.waiting if each.rank not in case.edges] or case.waiting
    calls = {each.rank: call_of(each) for each in behind}
    if len(calls) < 2:
        return None
    if "new_group" in calls.values():  # who has left it is ahead, and not to blame for that
        return different_groups(case)
    odd = odd_one(calls)
    if odd is not None and _is_root(case.by_rank[odd]):
        return _besides_root(case, calls.keys() - {odd})
    in_messages = {rank: call for rank, call in calls.items() if call in MESSAGES}
    if odd is not None and odd in in_messages and case.hang:
        return Verdict(calls, "undecided", _without_counterpart(case, in_messages))
    if odd is not None:
        return Verdict({odd}, "likely", differ({odd}, calls))
    if 0 < len(in_messages) < len(calls) and case.hang:
        return Verdict(in_messages, "undecided", _without_counterpart(case, in_messages))
    waits = case.claims("late") or case.hang or len({*calls.values()}) > 1
    return _mutual(case, calls, calls) if waits else None


def _is_root(witness: RankReport) -> bool:
    """Return whether it is the root of what it waits in, so that it may well be there in time."""
    root = _ROOT.search(witness.standing.full if witness.standing else "")
    return root is not None and int(root[1]) == witness.rank


_ROOT = re.compile(r"^(?!i?send|i?recv)\w+\((?:src|dst)=([0-9]{1,7})\b")


def _besides_root(case: Incident, ranks: Collection[int]) -> Verdict:
    """Judge ranks in one collective, while a root waits for one of them in another: the rank at a
    different place from the rest is to blame.
    """
    places = {each.rank: each.standing.place for each in case.of(ranks) if each.standing}
    odd = odd_one(places)
    calls = {each.rank: where_it_waits(each) for each in case.waiting}
    if odd is None:
        return Verdict(calls, "undecided", differ(calls, calls))
    return Verdict({odd}, "likely", differ({odd}, calls))


def _without_counterpart(case: Incident, ranks: Collection[int]) -> Diagnosis:
    """Describe messages between unknown ranks that have no counterpart among the others."""
    lines = [f"rank {each.rank} in {where_it_waits(each)}" for each in case.of(ranks)[:_MOST_SHOWN]]
    others = [each for each in case.waiting if each.rank not in ranks]
    calls = {each.rank: call_of(each) for each in others}
    why = f"Messages had no counterpart: {', '.join(lines)}. Meanwhile {listed(calls)}."
    return Diagnosis(Kind.DEADLOCK, why, NO_COUNTERPART)


_MOST_SHOWN = 4
