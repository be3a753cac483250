"""Finds messages that ranks wait in and whose other ends were not called, from all ranks'
recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torsh_runtime.monitoring.layout import MESSAGES, Operation


class Unmatched(NamedTuple):
    """A message that one rank waits in."""

    rank: int
    """Rank of the job that waits."""
    operation: Operation
    """Operation of the rank, a send or recv, which is running or has failed."""
    peer: int
    """Rank of the job that has not called the other end."""


def unmatched(
    records: Mapping[int, Sequence[Operation]], members: Mapping[int, Sequence[int]]
) -> list[Unmatched]:
    """Return the unmatched messages, as far as the recordings show them.

    members: by number of a group its ranks of the job, in the group's order. For a group that is
    missing there, all ranks are taken if their number is the group's size. Tags are ignored: a
    message that was sent with another tag than its receiver waits for is not unmatched.
    """
    found = []
    for rank, held in records.items():
        for each in _waited_in(held):
            ranks = members.get(each.group) or sorted(records)
            if len(ranks) != each.ranks or rank not in ranks or not 0 <= each.root < len(ranks):
                continue
            peer = ranks[each.root]
            if peer == rank or peer not in records:
                continue
            theirs = _between(records[peer], each.group, ranks.index(rank))
            if not _is_called(each, _between(held, each.group, each.root), theirs):
                found.append(Unmatched(rank, each, peer))
    return found


def _waited_in(held: Sequence[Operation]) -> Iterator[Operation]:
    """Yield messages that are not done, and for which their rank waits, or has failed waiting."""
    awaited = {each.awaited for each in held if each.operation == "wait" and each.state != "done"}
    for each in held:
        is_open = each.operation in MESSAGES and each.state != "done"
        if is_open and (not each.in_background or each.number in awaited):
            yield each


def _between(held: Sequence[Operation], group: int, root: int) -> list[Operation]:
    """Return a rank's messages to and from another one of the group, or from any."""
    messages = (each for each in held if each.operation in MESSAGES and each.group == group)
    return [
        each
        for each in messages
        if each.root == root or (each.root < 0 and each.operation == "recv")
    ]


def _is_called(operation: Operation, own: Sequence[Operation], theirs: Sequence[Operation]) -> bool:
    """Return whether the other rank has called what the operation waits for. `own` and `theirs` are
    the two ranks' messages of each other."""
    if operation.operation == "recv":
        return _last(theirs, "send") >= (operation.sequence or _expected(operation, own))
    is_awaited = any(each.operation == "recv" and each.state == "running" for each in theirs)
    return is_awaited or _last(theirs, "recv") >= operation.sequence


def _expected(operation: Operation, own: Sequence[Operation]) -> int:
    """Return the number of the message that comes next for a receive, behind those that were posted
    earlier and wait, too."""
    earlier = (each for each in own if each.number < operation.number and not each.sequence)
    waiting = sum(each.operation == "recv" for each in earlier)
    return _last(own, "recv") + waiting + 1


def _last(messages: Sequence[Operation], operation: str) -> int:
    return max((each.sequence for each in messages if each.operation == operation), default=0)
