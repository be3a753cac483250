"""Who has not called what the others wait in: found from the recordings of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from torsh_runtime.monitoring.layout import MESSAGES, NO_OPERATIONS, Operation
from torsh_runtime.monitoring.unmatched import unmatched

Records = Mapping[int, Sequence[Operation]]
"""Each rank's last operations, in the order in which they began."""
Members = Mapping[int, Sequence[int]]
"""By number of a group its ranks of the job, in the group's order, as far as they are known."""
_NO_MEMBERS: Members = MappingProxyType({})


class Suspicion(NamedTuple):
    """An operation in which ranks wait, or which some have called otherwise."""

    kind: str
    """`missing`: the ranks have not begun it; `mismatch`: they have called something else."""
    ranks: tuple[int, ...]
    """Of the job, ascending: whom the others wait for, or who differ from most."""
    operation: Operation
    """As one of the others has called it."""
    waiting: tuple[int, ...]
    """The ranks that are in it, or have failed there, ascending."""
    has_failed: bool
    """Whether it has failed on all of these."""
    since: float
    """When the first of these entered it: seconds of CLOCK_MONOTONIC of its machine."""
    last: Mapping[int, Operation]
    """What each of `ranks` has called last in this group, or at its turn; none of those that have
    called nothing there."""


def suspicions(records: Records, members: Members = _NO_MEMBERS) -> list[Suspicion]:
    """What is out of step, the operation that has been waited in longest first.

    Ranks of which there is no record of a group may be no members of it: they are not suspected.
    Nor are those that a message is for or from, if `members` tells of no such group.
    """
    found = []
    for group in sorted({each.group for held in records.values() for each in held}):
        of_group = {rank: _calls(held, group) for rank, held in records.items()}
        found += _of_group({rank: calls for rank, calls in of_group.items() if calls})
    found += _of_messages(records, members)
    return sorted(found, key=lambda each: each.since)


def _of_messages(records: Records, members: Members) -> Iterator[Suspicion]:
    for rank, operation, peer in unmatched(records, members):
        last = {peer: records[peer][-1]} if records[peer] else {}
        yield _suspicion("missing", [peer], operation, {rank: operation}, [rank], last)


def _calls(held: Sequence[Operation], group: int) -> dict[int, Operation]:
    """Those in the group, by their number there; of a group that was made again, as by a second
    init_process_group(), those since then."""
    found: dict[int, Operation] = {}
    last = -1
    for each in held:
        if each.group != group or each.operation in (*MESSAGES, *NO_OPERATIONS):
            continue
        if each.sequence <= last:
            found.clear()
        found[each.sequence] = each
        last = each.sequence
    return found


def _of_group(held: Mapping[int, Mapping[int, Operation]]) -> list[Suspicion]:
    inside = {
        rank: max(calls.values(), key=lambda each: each.sequence)
        for rank, calls in held.items()
        if any(each.state != "done" for each in calls.values())
    }
    if not inside:
        return []
    sequence = min(each.sequence for each in inside.values())
    at_it = {rank: calls[sequence] for rank, calls in held.items() if sequence in calls}
    waiting = tuple(sorted(rank for rank, each in at_it.items() if each.state != "done"))
    if not waiting:
        return []
    differing = _differing(at_it)
    if differing:
        model = next(each for rank, each in sorted(at_it.items()) if rank not in differing)
        others = {rank: at_it[rank] for rank in differing}
        return [_suspicion("mismatch", differing, model, at_it, waiting, others)]
    missing = tuple(sorted(rank for rank in held if max(held[rank]) < sequence))
    if not missing:
        return []
    last = {rank: held[rank][max(held[rank])] for rank in missing}
    return [_suspicion("missing", missing, at_it[waiting[0]], at_it, waiting, last)]


def _suspicion(
    kind: str,
    ranks: Sequence[int],
    model: Operation,
    at_it: Mapping[int, Operation],
    waiting: Sequence[int],
    last: Mapping[int, Operation],
) -> Suspicion:
    since = min(at_it[rank].entered for rank in waiting)
    has_failed = all(at_it[rank].state == "failed" for rank in waiting)
    return Suspicion(kind, tuple(ranks), model, tuple(waiting), has_failed, since, last)


def _differing(at_it: Mapping[int, Operation]) -> tuple[int, ...]:
    """Those that have called something else than most, or than the first where there is no most."""
    calls: dict[object, list[int]] = {}
    for rank in sorted(at_it):
        calls.setdefault(_call(at_it[rank]), []).append(rank)
    most = max(calls.values(), key=len)
    return tuple(sorted(rank for ranks in calls.values() if ranks is not most for rank in ranks))


def _call(operation: Operation) -> object:
    """What has to be the same on all ranks. Where sizes may differ by rank they are left out."""
    same = (operation.operation, operation.dtype, operation.root, operation.arrays)
    if operation.operation in ("all_reduce", "reduce", "broadcast", "reduce_scatter"):
        return *same, operation.reduction, operation.elements
    return same


_ENDS = {"send": "to", "recv": "from", "wait": "with"}
"""What the other rank of a message is to it."""


def named(operation: Operation) -> str:
    """Such as "all_reduce(float32[8], SUM) #12 of group 1f"."""
    has_array = operation.operation not in ("barrier", *NO_OPERATIONS)
    words = [f"{operation.dtype}[{operation.elements}]"] if has_array else []
    if operation.operation == "batch":
        words.append(f"{operation.elements} operations")
    if operation.operation in ("all_reduce", "reduce", "reduce_scatter"):
        words.append(operation.reduction)
    if operation.root >= 0:
        words.append(f"{_ENDS.get(operation.operation, 'root')} {operation.root}")
    group = f"group {operation.group:x}" if operation.group else "the default group"
    is_unknown = operation.operation in _ENDS and not operation.sequence
    number = "" if is_unknown else f"#{operation.sequence} "
    return f"{operation.operation}({', '.join(words)}) {number}of {group}"


def in_words(suspicion: Suspicion, now: float | None = None) -> str:
    """One line. `now`: the time on the waiting ranks' machine, to say since when they wait."""
    called, others = named(suspicion.operation), _others(suspicion, now)
    if suspicion.kind == "mismatch":
        calls = ", ".join(
            f"rank {rank} has called {named(each)}" for rank, each in suspicion.last.items()
        )
        return f"{calls}, where others have called {called}; {others}"
    told = f"{_ranks(suspicion.ranks)} never entered {called}; {others}"
    last = [
        f"rank {rank} was last in {named(each)}"
        + ("" if now is None or each.left is None else f", {now - each.left:.1f} s ago")
        for rank, each in suspicion.last.items()
    ]
    return "; ".join([told, *last])


def _others(suspicion: Suspicion, now: float | None) -> str:
    """Who waits in it, or has failed there."""
    ranks, is_one = _ranks(suspicion.waiting), len(suspicion.waiting) == 1
    if suspicion.has_failed:
        return f"it has failed on {ranks}"
    since = "" if now is None else f" since {max(now - suspicion.since, 0):.1f} s"
    return f"{ranks} {'waits' if is_one else 'wait'} in it{since}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
