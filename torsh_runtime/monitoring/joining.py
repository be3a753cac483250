"""Matches operations of several ranks that are one and the same, with the time at which all had
entered and the rank that came last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torsh_runtime.monitoring.layout import MESSAGES, NO_OPERATIONS, Operation
from torsh_runtime.monitoring.notes import Group, Note

Key = tuple[object, ...]
"""The part that all ranks' records of one operation have in common."""
_SOON = 50e-6
"""Seconds. A rank that has waited no longer than this has come last, or nearly so."""


class Recorded(Protocol):
    """The notes of one rank, with times in seconds of a clock that is the same for all ranks."""

    @property
    def operations(self) -> Sequence[Operation]: ...
    @property
    def notes(self) -> Sequence[Note]: ...
    @property
    def groups(self) -> Sequence[Group]: ...


class Held(NamedTuple):
    """A record in the form of values."""

    operations: Sequence[Operation] = ()
    notes: Sequence[Note] = ()
    groups: Sequence[Group] = ()


Records = Mapping[int, Recorded]
"""Records by rank of the job."""


class Call(NamedTuple):
    """An operation of one rank, matched with those of the others."""

    operation: Operation
    key: Key | None
    """None if it is not known which operations of others belong to it."""
    entered: float
    came: float
    """The time at which all had entered it, as far as that is known: between `entered` and
    `left`."""
    left: float
    last: int
    """The rank that entered it last; -1 is unknown."""


def joined(records: Records, bound: float | None = 0.0) -> dict[int, list[Call]]:
    """Return each rank's operations and waits for them, in the order in which they were entered.
    Nonsense is left out, and so are batches, whose operations are noted themselves.

    bound: the seconds by which clocks of two ranks may differ; None: they cannot be compared.
    """
    horizon = _horizon(records)
    keyed = {rank: _keyed(rank, record) for rank, record in records.items()}
    meetings: dict[Key, dict[int, Operation]] = {}
    for rank, held in keyed.items():
        for operation, key in held:
            if key is not None and operation.operation != "wait":
                meetings.setdefault(key, {})[rank] = operation
    lasts = {key: _last(ranks, bound) for key, ranks in meetings.items()}
    return {
        rank: sorted(
            (
                _call(rank, operation, key, meetings, lasts, horizon, bound)
                for operation, key in held
            ),
            key=lambda call: call.entered,
        )
        for rank, held in keyed.items()
    }


def _horizon(records: Records) -> float:
    """Return the last known moment. Operations that have not ended run until then."""
    moments = [
        moment
        for record in records.values()
        for operation in record.operations
        for moment in (operation.entered, operation.left)
        if moment is not None and math.isfinite(moment)
    ]
    moments += [note.time for each in records.values() for note in each.notes[-1:]]
    return max(filter(math.isfinite, moments), default=0.0)


def _keyed(rank: int, record: Recorded) -> list[tuple[Operation, Key | None]]:
    """Return the operations with their keys, in the order in which they began."""
    members = {group.number: group.members for group in record.groups}
    lives: dict[Key, tuple[int, int]] = {}
    found: list[tuple[Operation, Key | None]] = []
    for operation in reversed([each for each in record.operations if _makes_sense(each)]):
        key = None if operation.operation == "wait" else _key(rank, operation, members)
        if key is not None:
            # A group that was made again counts anew, so lives are counted from the newest.
            life, sequence = lives.get(key, (0, operation.sequence + 1))
            life += operation.sequence >= sequence
            lives[key] = life, operation.sequence
            key = *key, life, operation.sequence
        found.append((operation, key))
    found.reverse()
    return _with_waits(found)


def _with_waits(
    found: Sequence[tuple[Operation, Key | None]],
) -> list[tuple[Operation, Key | None]]:
    """Return the operations with keys for waits, too: those of the operations that are waited
    for."""
    keys = {operation.number: key for operation, key in found if operation.awaited is None}
    return [
        (operation, key if operation.awaited is None else keys.get(operation.awaited))
        for operation, key in found
    ]


def _is_collective(operation: Operation) -> bool:
    return operation.operation not in (*MESSAGES, *NO_OPERATIONS)


def _key(rank: int, operation: Operation, members: Mapping[int, Sequence[int]]) -> Key | None:
    """Return the key without the sequence number, or None if the other ranks of the operation are
    unknown."""
    if _is_collective(operation):
        return ("all", operation.group)
    if operation.operation not in MESSAGES or operation.root < 0:
        return None
    peer, ranks = operation.root, members.get(operation.group, ())
    if operation.group and not peer < len(ranks):
        return None
    peer = ranks[peer] if operation.group else peer
    ends = (rank, peer) if operation.operation == "send" else (peer, rank)
    return ("message", operation.group, *ends)


def _makes_sense(operation: Operation) -> bool:
    left = operation.left
    is_entry = operation.operation != "batch" and math.isfinite(operation.entered)
    return is_entry and (left is None or (math.isfinite(left) and left >= operation.entered))


def _last(ranks: Mapping[int, Operation], bound: float | None) -> int:
    """Return the rank that entered last: by the clock, or where it is too close to call, the one
    that waited least."""
    if len(ranks) < 2 or _was_other(ranks):
        return -1
    entered = sorted((each.entered, rank) for rank, each in ranks.items())
    if bound is not None and entered[-1][0] - entered[-2][0] >= bound:
        return entered[-1][1]
    waited = [
        (end - each.entered, rank)
        for rank, each in ranks.items()
        if (end := each.left if each.came is None else each.came) is not None
    ]
    # A rank that has not left, or was not informed, may have waited for any other.
    return min(waited)[1] if len(waited) == len(ranks) else -1


def _was_other(ranks: Mapping[int, Operation]) -> bool:
    """Return whether an unknown rank came last: all known ones have waited."""
    operations = ranks.values()
    if len(ranks) >= max(each.ranks for each in operations):
        return False
    return all(each.came is None or each.came - each.entered > _SOON for each in operations)


def _call(
    rank: int,
    operation: Operation,
    key: Key | None,
    meetings: Mapping[Key, Mapping[int, Operation]],
    lasts: Mapping[Key, int],
    horizon: float,
    bound: float | None,
) -> Call:
    entered = operation.entered
    left = max(horizon, entered) if operation.left is None else operation.left
    ranks = meetings.get(key, {}) if key is not None else {}
    awaited = ranks.get(rank, operation) if operation.operation == "wait" else operation
    came, last = _came(awaited, ranks, bound), lasts.get(key, -1) if key is not None else -1
    if came is None or not math.isfinite(came):  # then it counts as moving, which blames nobody
        came = entered if operation.left is not None else left
    return Call(operation, key, entered, min(max(came, entered), left), left, last)


def _came(
    operation: Operation, ranks: Mapping[int, Operation], bound: float | None
) -> float | None:
    """Return the time at which all had entered it, or None if that is unknown."""
    if operation.came is not None or bound is None or operation.operation == "send":
        return operation.came
    has_all = operation.operation == "recv" or len(ranks) >= operation.ranks
    return max((each.entered for each in ranks.values()), default=None) if has_all else None
