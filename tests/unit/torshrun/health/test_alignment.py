"""Recordings of several nodes on one clock: no effect before its cause, and within the bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Group, Note
from torshrun.health.alignment import aligned
from torshrun.health.clocks import Reading
from torshrun.health.recordings import Dump, Record

US = 1e-6
END = 5000.0
"""The moment, by the leader's clock, about which the nodes keep their recordings."""


def operation(
    name: str, sequence: int, entered: float, left: float | None, root: int = -1
) -> Operation:
    state = "running" if left is None else "done"
    times = (entered, None, left)
    what = ("float32", "SUM", 8, 32, root, 0, 0, 2, sequence, state)
    return Operation(sequence, name, *what, *times)


@dataclass
class Node:
    """One with a clock of its own, and what its one rank has recorded by the leader's clock."""

    number: int
    ahead: float = 0.0
    drift: float = 0.0
    operations: list[Operation] = field(default_factory=list)

    def own(self, time: float) -> float:
        """A moment of the leader's by its own clock."""
        return END + (time - END) * (1 + self.drift) + self.ahead

    def keep(self, reading: Reading | None, leader: str = "n0", at: float = END) -> Dump:
        here = self.own(at)

        def before(time: float | None) -> float | None:
            return None if time is None else self.own(time) - here

        operations = [
            each._replace(entered=before(each.entered), left=before(each.left))
            for each in self.operations
        ]
        notes = [Note(0, "step", "", self.own(at - 1) - here, 7.0, 0)]
        record = Record(operations, notes, [Group(0, 4, "", "0-3")])
        dump = Dump("digits", 0, self.number, f"h{self.number}", here, {self.number: record})
        return dump.with_clock(leader, reading) if reading else dump

    def true_reading(self, at: float = END) -> Reading:
        return Reading(at - self.own(at), 0.0, 1 / (1 + self.drift) - 1, 0.0)


def estimate(node: Node, chance: random.Random, at: float = END) -> Reading:
    """What an agent may know of the leader's clock."""
    true, bound, drift_bound = node.true_reading(at), chance.uniform(50, 300) * US, 20 * US
    return Reading(
        true.offset + chance.uniform(-1, 1) * bound,
        bound,
        true.drift + chance.uniform(-1, 1) * drift_bound,
        drift_bound,
    )


def run(nodes: Sequence[Node], chance: random.Random, count: int, seconds: float) -> None:
    """All meet so often in an all_reduce, and each sends a message to the next."""
    for number in range(count):
        time = END - seconds + seconds * number / count
        entered = [time + chance.expovariate(1 / (200 * US)) for _ in nodes]
        for node, begin in zip(nodes, entered, strict=True):
            left = max(entered) + 8 * US + chance.expovariate(1 / (20 * US))
            node.operations.append(operation("all_reduce", number, begin, left))
        begin = max(entered) + chance.uniform(300, 500) * US
        for place, node in enumerate(nodes):
            to = (place + 1) % len(nodes)
            node.operations.append(operation("send", number + 1, begin, begin + 5 * US, to))
            nodes[to].operations.append(
                operation("recv", number + 1, begin - 50 * US, begin + 12 * US, place)
            )


def violations(dumps: Sequence[Dump]) -> list[float]:
    """By how much effects are before their causes."""
    entered: dict[int, float] = {}
    sent: dict[tuple[int, int], float] = {}
    held = [(rank, each) for dump in dumps for rank, at in dump.operations.items() for each in at]
    for rank, each in held:
        if each.operation == "all_reduce":
            entered[each.sequence] = max(entered.get(each.sequence, -1e9), each.entered)
        elif each.operation == "send":
            sent[rank, each.sequence] = each.entered
    found = []
    for _, each in held:
        cause = each.entered
        if each.operation == "all_reduce":
            cause = entered[each.sequence]
        elif each.operation == "recv":
            cause = sent[each.root, each.sequence]
        found.append(cause - each.left)
    return [late for late in found if late > 1e-8]


def worst(nodes: Sequence[Node], dumps: Sequence[Dump], to: Callable[[float], float]) -> float:
    """How far any record is outside of its bound; `to` makes of a moment of the leader's one of the
    common clock's."""
    end = dumps[0].at + dumps[0].offset
    over = []
    for node, dump in zip(nodes, dumps, strict=True):
        for true, each in zip(node.operations, dump.operations[node.number], strict=True):
            error = abs(end + each.entered - to(true.entered))
            over.append(error - dump.reading.bound_at(each.entered - 1))
    return max(over)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_no_effect_is_before_its_cause_and_errors_are_within_their_bounds(
    seed: int, count: int
) -> None:
    chance = random.Random(seed)
    nodes = [Node(0)] + [
        Node(number, chance.uniform(-1e5, 1e5), chance.uniform(-50, 50) * US)
        for number in range(1, count)
    ]
    run(nodes, chance, 300, seconds=2.0)
    moments = [END + chance.uniform(0, 0.1) for _ in nodes]
    dumps = [
        node.keep(estimate(node, chance, at) if node.number else Reading(0.0, 0.0), at=at)
        for node, at in zip(nodes, moments, strict=True)
    ]
    found = aligned(dumps)
    assert violations(dumps)
    assert not violations(found)
    ends = [dump.at + dump.offset for dump in found]
    assert ends == pytest.approx([max(moments)] * count, abs=300 * US)
    assert max(ends) - min(ends) < 1e-8
    assert worst(nodes, found, lambda time: time) <= 0
    assert all(new.bound <= old.bound for new, old in zip(found, dumps, strict=True))
    if count == 2:
        assert found[1].bound <= 50 * US
        (note,) = found[1].records[1].notes
        assert note.time == pytest.approx(moments[1] - 1 - max(moments), abs=found[1].bound)


@pytest.mark.parametrize("leaders", [("", ""), ("n0", "n1")], ids=["none", "two"])
def test_operations_alone_join_nodes_that_know_of_no_common_leader(
    leaders: tuple[str, str],
) -> None:
    chance = random.Random(7)
    nodes = [Node(0), Node(1, 86400.0, 20 * US)]
    run(nodes, chance, 300, seconds=2.0)
    known = Reading(0.0, 0.0) if leaders[0] else None
    found = aligned([node.keep(known, leader) for node, leader in zip(nodes, leaders, strict=True)])
    assert not violations(found)
    assert found[1].bound <= 100 * US
    assert worst(nodes, found, lambda time: time) <= 0


def test_a_lie_counts_for_nothing_and_who_is_alone_stays_so() -> None:
    chance = random.Random(3)
    nodes = [Node(0), Node(1, 100.0), Node(2, -50.0), Node(3, 9.0)]
    run(nodes[:2], chance, 50, seconds=1.0)
    (lie,) = (each for each in nodes[1].operations if each[:2] == (20, "all_reduce"))
    nodes[1].operations[nodes[1].operations.index(lie)] = lie._replace(left=lie.entered - 5.0)
    nodes[2].operations.append(operation("barrier", 3, END - 1, None))
    readings = [Reading(0.0, 0.0), estimate(nodes[1], chance), None, estimate(nodes[3], chance)]
    dumps = [node.keep(each) for node, each in zip(nodes, readings, strict=True)]
    found = aligned(dumps)
    for dump, known in zip(found, readings, strict=True):
        assert (dump.reading is None) == (known is None)
        assert dump.bound == pytest.approx(known.bound if known else 0.0)
    assert found[2] == dumps[2]
    assert found[3].records[3].operations == []
    assert aligned([]) == []


def test_a_group_that_was_made_again_is_told_from_the_one_before() -> None:
    chance = random.Random(5)
    nodes = [Node(0), Node(1, 3.0)]
    run(nodes, chance, 20, seconds=2.0)
    nodes[1].operations[:0] = [  # of which the other holds nothing any more
        operation("all_reduce", number, END - 9 + number / 100, END - 9 + (number + 1) / 100)
        for number in range(60)
    ]
    dumps = [nodes[0].keep(Reading(0.0, 0.0)), nodes[1].keep(estimate(nodes[1], chance))]
    assert aligned(dumps)[1].bound < dumps[1].bound
