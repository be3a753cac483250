"""Finds the ranks that have not called what the others wait in, from the recordings of all
ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from torsh_runtime.monitoring.astray import SIZED, astray
from torsh_runtime.monitoring.layout import MESSAGES, NO_OPERATIONS, Operation
from torsh_runtime.monitoring.notes import DEFAULT
from torsh_runtime.monitoring.unmatched import unmatched

Records = Mapping[int, Sequence[Operation]]
"""The last operations of each rank, in the order in which they began."""
Members = Mapping[int, Sequence[int]]
"""Ranks of the job in each group, by the group's number and in its order, as far as they are
known."""
_NO_COLLECTIVES = (*MESSAGES, *NO_OPERATIONS)
_ONE_WAY = ("broadcast", "reduce", "gather", "scatter")
"""Operations that some ranks leave before others have entered."""
_ABOUT = 1.0
"""Seconds between operations within which the time does not show which one came first."""
_NONE: Mapping[int, str] = MappingProxyType({})
_NO_MEMBERS: Members = MappingProxyType({})


class Suspicion(NamedTuple):
    """An operation in which ranks wait, or which some have called otherwise."""

    kind: str
    """`missing`: the ranks have not begun it; `mismatch`: they have called something else;
    `astray`: the rank has alone made another call than all others that are in such groups;
    `crosswise`: each of them has not begun what the next one waits in."""
    ranks: tuple[int, ...]
    """Ranks of the job, ascending: those the others wait for, or those that differ from most."""
    operation: Operation
    """The operation as one of the others has called it."""
    waiting: tuple[int, ...]
    """The ranks that are in it, or have failed there, ascending."""
    has_failed: bool
    """True if it has failed on all of these."""
    since: float
    """Time at which the first of these entered it: seconds of CLOCK_MONOTONIC of its machine."""
    last: Mapping[int, Operation]
    """The last call of each of `ranks` in this group, or its call at this turn, without the ranks
    that have called nothing there. If they wait crosswise, the operation in which each of them
    waits."""
    agreeing: tuple[int, ...] = ()
    """The ranks that have called `operation` there in case of a mismatch, ascending. A rank that is
    astray is compared with these."""

    @property
    def is_by_most(self) -> bool:
        """Return whether more ranks have called one thing than another."""
        is_more = self.kind == "mismatch" and len(self.agreeing) > len(self.ranks)
        return is_more or self.kind == "astray"


class Told(NamedTuple):
    """Further facts that are used in texts."""

    groups: Mapping[int, str] = _NONE
    """Names of groups by number."""
    places: Mapping[int, str] = _NONE
    """Place of a rank: "node2"."""
    doing: Mapping[int, str] = _NONE
    """Activity of a rank meanwhile: "in section data since 31 s"."""


NOTHING = Told()


def suspicions(records: Records, members: Members = _NO_MEMBERS) -> list[Suspicion]:
    """Return what is out of step. The operation in which ranks have waited longest comes first.

    Ranks without a record of a group may be no members of it: they are not suspected, unless
    `members` has them, or all ranks are members, and nothing of theirs was overwritten.
    """
    groups = sorted({each.group for held in records.values() for each in held})
    found = [each for group in groups for each in _of_group(records, group, members)]
    found += _of_messages(records, members)
    found.sort(key=lambda each: each.since)
    more = [_crosswise(records, found), _astray(records, found)] if found else []
    return [*filter(None, more), *found]


def culprit(found: Sequence[Suspicion]) -> Suspicion | None:
    """Return the suspicion that explains the others, if there is one: a rank that alone has called
    something else; else ranks that others wait for, and that wait for nobody; else those that wait
    for each other."""
    for kind in ("astray", "mismatch"):
        for each in found:
            if each.kind == kind:
                return each
    waiting = {rank for each in found for rank in each.waiting}
    free = [each for each in found if each.kind == "missing" and {*each.ranks} - waiting]
    if not free:
        return found[0] if found else None
    ends = [each for each in free if not waiting & {*each.ranks}] or free
    # Of operations that ranks have waited in since about the same moment, by several clocks, take
    # the one that comes first in the program.
    soon = [each for each in ends if each.since < ends[0].since + _ABOUT]
    first = min(soon, key=lambda each: each.operation.number)
    return first._replace(ranks=tuple(rank for rank in first.ranks if rank not in waiting))


def _members(records: Records, group: int, size: int, members: Members) -> Collection[int]:
    """Return ranks that surely are members of the group, even if they have called nothing there. A
    rank whose record of it may be overwritten is left out."""
    whole = members.get(group) or (records if size == len(records) else ())
    return {
        rank
        for rank in whole
        if rank in records and not (records[rank] and records[rank][0].number)
    }


def _calls(held: Sequence[Operation], group: int) -> dict[int, Operation]:
    """Return the calls in the group, by their number there. For a group that was made again, as by
    a second init_process_group(), these are the calls since then."""
    found: dict[int, Operation] = {}
    last = -1
    for each in held:
        if each.group != group or each.operation in _NO_COLLECTIVES:
            continue
        if each.sequence <= last:
            found.clear()
        found[each.sequence] = each
        last = each.sequence
    return found


def _of_group(records: Records, group: int, members: Members) -> list[Suspicion]:
    every = {rank: _calls(held, group) for rank, held in records.items()}
    held = {rank: calls for rank, calls in every.items() if calls}
    if not held:
        return []
    size = next(each.ranks for calls in held.values() for each in calls.values())
    idle = {rank for rank in _members(records, group, size, members) if not every[rank]}
    every_call = [each for calls in held.values() for each in calls.values()]
    open_ = {each.sequence for each in every_call if each.state != "done"}
    last = max(open_, default=-1)
    # Where ranks leave early they may differ there, and fail in what comes next.
    early = {each.sequence for each in every_call if each.operation in _ONE_WAY}
    found = (_at(sequence, held, idle) for sequence in sorted(open_ | early) if sequence <= last)
    return [each for each in found if each][:1]


def _at(
    sequence: int, held: Mapping[int, Mapping[int, Operation]], idle: Collection[int]
) -> Suspicion | None:
    """Return what is out of step at this operation of a group. `idle` are members that have called
    nothing there."""
    at_it = {rank: calls[sequence] for rank, calls in held.items() if sequence in calls}
    waiting = tuple(sorted(rank for rank, each in at_it.items() if each.state != "done"))
    differing = _differing(at_it)
    if differing:
        model = next(each for rank, each in sorted(at_it.items()) if rank not in differing)
        others = {rank: at_it[rank] for rank in differing}
        found = _suspicion("mismatch", differing, model, at_it, waiting, others)
        return found._replace(agreeing=tuple(sorted({*at_it} - {*differing})))
    late = {rank for rank in held if max(held[rank]) < sequence}
    missing = tuple(sorted(late.union(idle)))
    if not (missing and waiting):
        return None
    last = {rank: held[rank][max(held[rank])] for rank in sorted(late)}
    return _suspicion("missing", missing, at_it[waiting[0]], at_it, waiting, last)


def _suspicion(
    kind: str,
    ranks: Sequence[int],
    model: Operation,
    at_it: Mapping[int, Operation],
    waiting: Sequence[int],
    last: Mapping[int, Operation],
) -> Suspicion:
    since = min(at_it[rank].entered for rank in waiting or at_it)
    has_failed = bool(waiting) and all(at_it[rank].state == "failed" for rank in waiting)
    return Suspicion(kind, tuple(ranks), model, tuple(waiting), has_failed, since, last)


def _of_messages(records: Records, members: Members) -> Iterator[Suspicion]:
    for rank, operation, peer in unmatched(records, members):
        last = {peer: records[peer][-1]} if records[peer] else {}
        yield _suspicion("missing", [peer], operation, {rank: operation}, [rank], last)


def _crosswise(records: Records, found: Sequence[Suspicion]) -> Suspicion | None:
    """Return a suspicion of ranks that wait in a circle, each for the next one, in different
    operations."""
    waits: dict[int, Suspicion] = {}
    for each in found:
        if each.kind == "missing":
            waits |= {rank: each for rank in each.waiting if rank not in waits}
    ranks = tuple(sorted(_circle({rank: each.ranks for rank, each in waits.items()})))
    if not ranks:
        return None
    first = min((waits[rank] for rank in ranks), key=lambda one: one.since)
    inside = {rank: _call_in(records[rank], waits[rank]) for rank in ranks}
    has_failed = all(waits[rank].has_failed for rank in ranks)
    return Suspicion("crosswise", ranks, first.operation, ranks, has_failed, first.since, inside)


def _astray(records: Records, found: Sequence[Suspicion]) -> Suspicion | None:
    """Return the rank that alone has made another call, if that has led to anything."""
    odd = astray(records)
    if odd is None or any(_names(each, odd.rank) for each in found):
        return None
    waiting = tuple(sorted({rank for each in found for rank in each.waiting} - {odd.rank}))
    has_failed = all(each.has_failed for each in found)
    last = {odd.rank: odd.called}
    since = found[0].since
    one = Suspicion("astray", (odd.rank,), odd.instead_of, waiting, has_failed, since, last)
    return one._replace(agreeing=odd.others)


def _names(suspicion: Suspicion, rank: int) -> bool:
    return suspicion.is_by_most and suspicion.ranks == (rank,)


def first_missed(records: Records, ranks: Collection[int]) -> Operation | None:
    """Return the first call, in the order of the program, that others have made and none of these
    ranks, in groups of at least one of these. Others may have gone through it, as a root does."""
    found: list[Operation] = []
    for rank in ranks:
        reached = {
            group: max(calls, default=-1)
            for group in {each.group for each in records.get(rank, ())}
            if (calls := _calls(records[rank], group))
        }
        for other, held in records.items():
            later = (each for each in held if each.group in reached and other not in ranks)
            missed = (each for each in later if each.sequence > reached[each.group])
            found += [each for each in missed if each.operation not in _NO_COLLECTIVES][:1]
    return min(found, key=lambda each: each.number, default=None)


def _circle(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the ranks of one circle, each of which waits for the next one, or [] if there is
    none."""
    left = set(waits_for)
    while left:
        row = [min(left)]
        turns = {row[0]: iter(waits_for[row[0]])}
        while row:
            after = next((rank for rank in turns[row[-1]] if rank in left), None)
            if after is None:
                left.discard(row.pop())
            elif after in row:
                return row[row.index(after) :]
            else:
                row.append(after)
                turns[after] = iter(waits_for[after])
    return []


def _call_in(held: Sequence[Operation], suspicion: Suspicion) -> Operation:
    """Return the rank's own call of what it waits in."""
    model = suspicion.operation
    alike = (each for each in held if (each.group, each.sequence) == (model.group, model.sequence))
    return next((each for each in alike if each.state != "done"), model)


def _differing(at_it: Mapping[int, Operation]) -> tuple[int, ...]:
    """Return the ranks that have called something else than most, or than the first where no call
    has the most ranks."""
    calls: dict[object, list[int]] = {}
    for rank in sorted(at_it):
        calls.setdefault(_call(at_it[rank]), []).append(rank)
    most = max(calls.values(), key=len)
    return tuple(sorted(rank for ranks in calls.values() if ranks is not most for rank in ranks))


def _call(operation: Operation) -> object:
    """Return what has to be the same on all ranks. Sizes are left out where they may differ by
    rank."""
    same = (operation.operation, operation.dtype, operation.root, operation.arrays)
    if operation.operation in SIZED:
        return *same, operation.reduction, operation.elements
    return same


# ---- in words


_ENDS = {"send": "to", "recv": "from", "wait": "with"}
"""The preposition before the other rank of a message."""


_OTHER_END = {"send": "recv", "recv": "send"}
"""The call of the other rank of a message."""


def named(operation: Operation, groups: Mapping[int, str] = _NONE) -> str:
    """Return a text such as "all_reduce(float32[8], SUM) #12 of group 1f"."""
    has_array = operation.operation not in ("barrier", *NO_OPERATIONS)
    words = [f"{operation.dtype}[{operation.elements}]"] if has_array else []
    if operation.operation == "batch":
        words.append(f"{operation.elements} operations")
    if operation.operation in ("all_reduce", "reduce", "reduce_scatter"):
        words.append(operation.reduction)
    if operation.root >= 0:
        words.append(f"{_ENDS.get(operation.operation, 'root')} {operation.root}")
    is_unknown = operation.operation in _ENDS and not operation.sequence
    number = "" if is_unknown else f"#{operation.sequence} "
    group = group_named(operation.group, groups)
    return f"{operation.operation}({', '.join(words)}) {number}of {group}"


def group_named(group: int, groups: Mapping[int, str] = _NONE) -> str:
    """Return "the default group", "group dp", or the group's number where it has no name."""
    if not group or groups.get(group) == DEFAULT:
        return "the default group"
    return f"group {groups.get(group) or format(group, 'x')}"


def in_words(suspicion: Suspicion, now: float | None = None, told: Told = NOTHING) -> str:
    """Return one line about the suspicion. `now`: the time on the waiting ranks' machine, to say
    since when they wait."""
    called, others = named(suspicion.operation, told.groups), _others(suspicion, now)
    if suspicion.kind == "crosswise":
        return _in_circle(suspicion, now, told)
    if suspicion.kind in ("mismatch", "astray"):
        calls = ", ".join(
            f"rank {rank}{_on(rank, told)} has called {named(each, told.groups)}"
            for rank, each in suspicion.last.items()
        )
        if suspicion.kind == "astray":
            others = _ranks(suspicion.agreeing)
            return f"{calls}, where {others} went on with {called}, each in its groups"
        calls = f"{calls}, where others have called {called}"
        return f"{calls}; {others}" if suspicion.waiting else calls
    doing = [told.doing[rank] for rank in suspicion.ranks[:1] if told.doing.get(rank)]
    meanwhile = f": {doing[0]}" if doing else ""
    who = f"{_ranks(suspicion.ranks)}{_on(suspicion.ranks[0], told)}"
    other = _OTHER_END.get(suspicion.operation.operation)
    never = f"never called {other} for" if other else "never entered"
    lines = [f"{who} {never} {called}{meanwhile}", others]
    lines += [
        f"rank {rank} was last in {named(each, told.groups)}"
        + ("" if now is None or each.left is None else f", {now - each.left:.1f} s ago")
        for rank, each in suspicion.last.items()
    ]
    return "; ".join(lines)


def _in_circle(suspicion: Suspicion, now: float | None, told: Told) -> str:
    since = "" if now is None else f", since {max(now - suspicion.since, 0):.1f} s"
    calls = ", ".join(
        f"rank {rank}{_on(rank, told)} in {named(each, told.groups)}"
        for rank, each in suspicion.last.items()
    )
    return f"{_ranks(suspicion.ranks)} wait for each other{since}: {calls}"


def _on(rank: int, told: Told) -> str:
    place = told.places.get(rank)
    return f" on {place}" if place else ""


def _others(suspicion: Suspicion, now: float | None) -> str:
    """Return a text about the ranks that wait in it, or have failed there."""
    ranks, is_one = _ranks(suspicion.waiting), len(suspicion.waiting) == 1
    if suspicion.has_failed:
        return f"it has failed on {ranks}"
    since = "" if now is None else f" since {max(now - suspicion.since, 0):.1f} s"
    return f"{ranks} {'waits' if is_one else 'wait'} in it{since}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
