"""Condenses the last operations of ranks for other nodes, and concludes what all of them prove.

Everything here is pure. As text, trails are JSON, compressed and in base64. It comes from another
machine: whatever does not fit its form is ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torsh_runtime.monitoring.flight import Suspicion, Told, culprit, in_words, suspicions
from torsh_runtime.monitoring.layout import MESSAGES, Operation
from torsh_runtime.monitoring.notes import Group, Whereabouts
from torshrun.text import printable

TRAIL_CHARS = 2400
"""Characters of a node's trails as text."""
MOST_GROUPS = 6
"""Groups of a rank that are told of: those that it called last."""
MOST_LINES = 2
"""Lines about what is out of step."""
_KEPT = (24, 12, 4)
"""Last calls of a rank that are reported besides those of its groups; fewer if space is short."""
_OPENED = 1 << 18
"""Bytes of a node's trails that are looked at."""
_MOST_OPERATIONS = 64
_NAME_CHARS = 64
_LARGEST = 1 << 53


class Trails(NamedTuple):
    """Holds the condensed recordings of some ranks. Times are seconds before now: less than 0."""

    operations: Mapping[int, Sequence[Operation]]
    """The operations of each rank, in the order in which they began."""
    stands: Mapping[int, Whereabouts]
    """The whereabouts of each rank."""
    groups: Mapping[int, Group]
    """The groups by their numbers."""


class Node(NamedTuple):
    """The trails of one node's ranks."""

    name: str
    trails: Trails


class Concluded(NamedTuple):
    """Holds what the trails of all nodes prove."""

    suspicions: Sequence[Suspicion]
    told: Told
    """The names and places that are put into words."""

    @property
    def culprit(self) -> Suspicion | None:
        """Return the suspicion that explains the rest; None if all are in step."""
        return culprit(self.suspicions)

    @property
    def lines(self) -> list[str]:
        """Return lines in words, the culprit first."""
        first = self.culprit
        if first is None:
            return []
        whole = next(each for each in self.suspicions if each.since == first.since)
        rest = [each for each in self.suspicions if each not in (first, whole)]
        return [in_words(each, 0.0, self.told) for each in (first, *rest)][:MOST_LINES]


NOTHING = Concluded((), Told())


def conclude(nodes: Sequence[Node]) -> Concluded:
    """Return what the records of these nodes prove together."""
    operations = {rank: held for node in nodes for rank, held in node.trails.operations.items()}
    groups = {number: each for node in nodes for number, each in node.trails.groups.items()}
    several = len({node.name for node in nodes}) > 1
    told = Told(
        {number: printable(each.name) for number, each in groups.items()},
        {rank: node.name for node in nodes for rank in node.trails.operations if several},
        {
            rank: doing(stands)
            for node in nodes
            for rank, stands in node.trails.stands.items()
            if doing(stands)
        },
    )
    members = {number: found for number, each in groups.items() if (found := each.members)}
    return Concluded(suspicions(operations, members), told)


def doing(stands: Whereabouts) -> str:
    """Return a text such as "in section data since 31 s, step 12"; "" is unknown."""
    parts = []
    if stands.section:
        parts.append(f"in section {printable(stands.section)} since {max(-stands.since, 0):.1f} s")
    if stands.step is not None:
        parts.append(f"step {stands.step}")
    return ", ".join(parts)


# ---- as text


def encode(trails: Trails) -> str:
    """Return trails as text, shorter if they would not fit; "" if there is nothing, or no room."""
    for most in _KEPT if any(trails.operations.values()) else ():
        plain = json.dumps(_plain(trails, most), separators=(",", ":")).encode()
        text = base64.b64encode(zlib.compress(plain, 9)).decode()
        if len(plain) <= _OPENED and len(text) <= TRAIL_CHARS:
            return text
    return ""


def _plain(trails: Trails, most: int) -> Mapping[str, Any]:
    ranks = {
        str(rank): [_stand(trails.stands.get(rank, Whereabouts())), *map(_call, last(held, most))]
        for rank, held in trails.operations.items()
    }
    used = {each.group for held in trails.operations.values() for each in last(held, most)}
    groups = [
        [each.number, each.size, each.name[:_NAME_CHARS], each.ranks]
        for number, each in trails.groups.items()
        if number in used
    ]
    return {"ranks": ranks, "groups": groups}


def last(held: Sequence[Operation], most: int) -> list[Operation]:
    """Return the operations that are worth keeping.

    These are the first one, if it is the worker's first; all that have not ended well; the last
    `most`; and the last one in each of the groups that it called last, of messages in each
    direction.
    """
    kept: dict[object, Operation] = {}
    for each in reversed(held):
        is_message = each.operation in MESSAGES
        key = each.group, (each.operation, each.root) if is_message else each.operation == "wait"
        if key not in kept and len(kept) < MOST_GROUPS:
            kept[key] = each
    begun = [each for each in held if each.state != "done" or not each.number]
    found = {each.number: each for each in (*begun, *held[-most:], *kept.values())}
    return [found[number] for number in sorted(found)][-_MOST_OPERATIONS:]


def _stand(stands: Whereabouts) -> Sequence[Any]:
    step = stands.step if stands.step is not None and abs(stands.step) < _LARGEST else None
    times = round(stands.stepped, 3), round(stands.since, 3)
    return [step, times[0], stands.section[:_NAME_CHARS], times[1]]


def _call(each: Operation) -> Sequence[Any]:
    facts = (each.number, each.operation, each.dtype, each.reduction, each.elements, each.root)
    place = (each.arrays, each.group, each.ranks, each.sequence, each.state)
    left = None if each.left is None else round(each.left, 2)
    return [*facts, *place, round(each.entered, 2), left, each.in_background, each.awaited]


def decode(text: str, ranks: Iterable[int]) -> Trails | None:
    """Return what was reported of these ranks; None if it makes no sense."""
    allowed = {*ranks}
    try:
        packed = base64.b64decode(text[: 2 * TRAIL_CHARS], validate=True)
        told = json.loads(zlib.decompressobj().decompress(packed, _OPENED))
        found = {int(rank): facts for rank, facts in told["ranks"].items()}
        mine = {rank: facts for rank, facts in found.items() if rank in allowed}
        return Trails(
            {
                rank: [*map(_read_call, facts[1:][:_MOST_OPERATIONS])]
                for rank, facts in mine.items()
            },
            {rank: _read_stand(*facts[0]) for rank, facts in mine.items()},
            {each.number: each for each in map(_read_group, told["groups"][:64])},
        )
    except (
        binascii.Error,
        zlib.error,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        RecursionError,
    ):
        return None


def _read_stand(step: object, stepped: object, section: object, since: object) -> Whereabouts:
    number = None if step is None else _whole(step)
    return Whereabouts(number, _ago(stepped), _word(section), _ago(since))


def _read_call(facts: Sequence[Any]) -> Operation:
    number, operation, dtype, reduction, elements, root, arrays, group, ranks, *rest = facts
    sequence, state, entered, left, in_background, awaited = rest
    if state not in ("running", "done", "failed"):
        raise ValueError
    return Operation(
        number=_whole(number),
        operation=_word(operation),
        dtype=_word(dtype),
        reduction=_word(reduction),
        elements=_whole(elements),
        nbytes=0,
        root=_whole(root),
        arrays=_whole(arrays),
        group=_whole(group),
        ranks=_whole(ranks),
        sequence=_whole(sequence),
        state=state,
        entered=_ago(entered),
        came=None,
        left=None if left is None else _ago(left),
        in_background=in_background is True,
        awaited=None if awaited is None else _whole(awaited),
    )


def _read_group(facts: Sequence[Any]) -> Group:
    number, size, name, ranks = facts
    if not isinstance(ranks, str) or len(ranks) > 256:
        raise TypeError
    return Group(_whole(number), _whole(size), _word(name), ranks)


def _whole(value: object) -> int:
    if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
        raise TypeError
    return value


def _ago(value: object) -> float:
    if type(value) not in (int, float) or not -1e12 < float(str(value)) < 1e12:
        raise TypeError
    return float(str(value))


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value[:_NAME_CHARS])
