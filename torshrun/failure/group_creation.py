"""Judges ranks that are blocked where a process group is made, which is never created. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from torshrun.failure.incident import Incident, call_of
from torshrun.failure.kinds import Diagnosis, Kind, of_ranks
from torshrun.failure.wording import Verdict, full_call, listed
from torshrun.text import format_ranks

NOT_MET = "they do not reach the store at the port that MASTER_ADDR and MASTER_PORT name there"
_MEETING = frozenset({"init_process_group", "new_group"})


def stuck_group_creation(case: Incident) -> Verdict | None:
    """Judge ranks that all came, but whose group was not created."""
    there = {each.rank: call_of(each) for each in case.waiting}
    calls = {*there.values()}
    if len(there) < len(case.witnesses) or case.silent or not calls <= _MEETING:
        return None
    if "init_process_group" not in calls:
        return different_groups(case)
    complaints = [each.blame or each.mutters for each in case.witnesses]
    if all(each and each.weak and each.how == "late" for each in complaints):
        said = next((each.said for each in case.followers), "")
        return Verdict((), "likely", _of_address(said))
    counting = {each.rank: each.blame.room for each in case.claims("late") if each.blame}
    wanted = max(counting.values(), default=0)
    if wanted > len(there) or (not wanted and len({each.node for each in case.witnesses}) == 1):
        return Verdict((), "likely", _of_world_size(there, wanted))
    late = there.keys() - counting.keys()
    if wanted and len(late) == 1:
        return Verdict(late, "likely", of_ranks(Kind.NETWORK, format_ranks(late), "", "", NOT_MET))
    return None


def different_groups(case: Incident) -> Verdict:
    """Judge ranks of which some are in new_group, and the others in no place but a collective."""
    groups = {each.rank: full_call(each) for each in case.waiting}
    inside = {rank: call for rank, call in groups.items() if call.startswith("new_group")}
    is_known = any(call != "new_group" for call in inside.values())
    reading = _of_groups(inside, listed(groups) if is_known else "")
    members = {rank: _members(call) for rank, call in inside.items()}
    behind = _passed_by(inside, members)
    if len(behind) == 1:
        return Verdict(behind, "likely", reading)
    return Verdict(behind or _at_odds(inside, members) or inside, "undecided", reading)


_RANKS = re.compile(r"\bnew_group\((?:ranks=)?\[([0-9, ]+)\]\)")
_NUMBER = re.compile(r" as its group ([0-9]{1,9})$")


def _members(call: str) -> frozenset[int]:
    """Return the members of the group that a rank makes; none if they are not known."""
    found = _RANKS.search(call)
    return frozenset(map(int, found[1].split(","))) if found else frozenset()


def _passed_by(calls: Mapping[int, str], members: Mapping[int, frozenset[int]]) -> set[int]:
    """Return the ranks that wait in a group for members that have continued to a later one."""
    found = {rank: _NUMBER.search(call) for rank, call in calls.items()}
    numbers = {rank: int(match[1]) for rank, match in found.items() if match}
    return {
        rank
        for rank, number in numbers.items()
        if any(numbers.get(other, 0) > number for other in members[rank])
    }


def _at_odds(calls: Mapping[int, str], members: Mapping[int, frozenset[int]]) -> set[int]:
    """Return the ranks that wait for each other in different groups."""
    return {
        rank
        for rank, others in members.items()
        for other in others & calls.keys()
        if rank in members[other] and others != members[other]
    }


def _of_address(said: str) -> Diagnosis:
    return Diagnosis(
        Kind.NETWORK,
        "No rank reached the store through which all connect, not even the rank that may serve it"
        f"{': ' * bool(said)}{said or '.'}",
        "See where that address comes from: MASTER_ADDR, MASTER_PORT and init_method that the "
        "script or a profile sets override what torshrun sets; leave them out.",
    )


def _of_groups(ranks: Collection[int], calls: str) -> Diagnosis:
    return Diagnosis(
        Kind.MISSING,
        f"{format_ranks(ranks)} waited for each other in new_group: they have not all created "
        f"the same groups before{': ' * bool(calls)}{calls}.",
        "Every rank must call new_group() for every group, in the same order, also for groups "
        "that it is not a member of.",
    )


def _of_world_size(ranks: Collection[int], wanted: int) -> Diagnosis:
    more = f"{wanted} ranks" if wanted else "more than those, or at another address"
    return Diagnosis(
        Kind.USAGE,
        f"All ranks of the job ({len(ranks)}) came to init_process_group, and waited for {more}.",
        "Leave world_size, rank and init_method out, so that WORLD_SIZE, RANK, MASTER_ADDR and "
        "MASTER_PORT count, which torshrun sets; a number of ranks from a configuration has to be "
        "that of the job (--nnodes times --nproc-per-node).",
    )
