"""Who is found slow, why, when it begins and when it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import pytest

from torsh_runtime.monitoring.findings import Finding
from torsh_runtime.monitoring.judging import Judge
from torsh_runtime.monitoring.summaries import NodeSummary, RankSummary

Change = Callable[[RankSummary], RankSummary]
EACH = 6  # steps of a summary


def summary(rank: int, step: int, own: float = 0.030, pattern: int = 1) -> RankSummary:
    sections = [("forward", own - 0.005), ("data", 0.005)]
    return RankSummary(rank, step, EACH, pattern, 0.045, own, 0.001, 0.002, sections=sections)


class Job:
    """A job whose summaries come in turn, some changed."""

    def __init__(self, judge: Judge, nodes: int = 2, per_node: int = 2, noise: float = 0.0) -> None:
        self.judge, self.nodes, self.per_node = judge, nodes, per_node
        self.number = 0
        self.noise, self.chance = noise, random.Random(nodes * per_node)
        self.rates = [5e9] * nodes
        self.cpu: float | None = None
        self.patterns = False
        self.own: Callable[[], float] | None = None
        """Seconds of own work of a step in a look, by chance."""

    def run(self, steps: int, change: Change = lambda each: each) -> list[Finding]:
        found = []
        for _ in range(steps // EACH):
            self.number += 1
            found += self.judge.observe(self.node(node, change) for node in range(self.nodes))
        return found

    def node(self, node: int, change: Change) -> NodeSummary:
        first = node * self.per_node
        ranks = [change(self.rank(rank)) for rank in range(first, first + self.per_node)]
        return NodeSummary(self.number, node, ranks, cpu=self.cpu, rate=self.rates[node])

    def rank(self, rank: int) -> RankSummary:
        own = self.own() if self.own else 0.030 * (1 + self.chance.uniform(-self.noise, self.noise))
        return summary(rank, self.number * EACH, own, rank if self.patterns else 1)


def slower(rank: int, by: float = 0.010, **facts: float) -> Change:
    """`by` seconds more of its own work, for which the others wait."""

    def change(each: RankSummary) -> RankSummary:
        if each.rank != rank:
            return each._replace(waiting=each.waiting + by)
        return each._replace(own=each.own + by, **facts)  # type: ignore[arg-type]

    return change


def in_data(change: Change, rank: int) -> Change:
    def with_data(each: RankSummary) -> RankSummary:
        changed = change(each)
        if each.rank != rank:
            return changed
        return changed._replace(sections=[("forward", 0.025), ("data", 0.015)])

    return with_data


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_healthy_job_raises_no_alarm(nodes: int) -> None:
    assert Job(Judge(), nodes, 4, noise=0.08).run(3000) == []


def sentences(chance: random.Random) -> float:
    """Steps that are as long as what is read."""
    return fmean(0.030 * chance.lognormvariate(0, 0.35) for _ in range(EACH))


def garbage(chance: random.Random) -> float:
    """Steps of which some collect garbage for 100 ms."""
    return fmean(0.130 if chance.random() < 0.03 else 0.030 for _ in range(EACH))


@pytest.mark.parametrize("vary", [sentences, garbage])
@pytest.mark.parametrize("nodes", [1, 2])
def test_steps_that_vary_by_chance_raise_no_alarm_and_hide_nobody(
    vary: Callable[[random.Random], float], nodes: int
) -> None:
    for seed in range(4):
        job = Job(Judge(), nodes, 2)
        job.own = partial(vary, random.Random(seed))
        assert job.run(1200) == []
        first, *_ = job.run(300, slower(1))
        assert first.ranks == (1,)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({}, "section data"),
        ({"queued": 0.008}, "processor"),
        ({"throttled": 0.008, "queued": 0.008}, "quota"),
        ({"faults": 80.0}, "disk"),
        ({"read": 0.008}, "disk"),
    ],
)
def test_who_becomes_slow_is_found_within_30_steps_and_why(
    facts: dict[str, float], cause: str
) -> None:
    job = Job(Judge(), noise=0.03)
    assert job.run(60) == []
    (found,) = job.run(30, in_data(slower(2, **facts), 2))
    assert (found.kind, found.ranks, found.node, found.cause) == ("straggler", (2,), 1, cause)
    assert found.ratio == pytest.approx(4 / 3, rel=0.1)
    assert found.speedup == pytest.approx(45 / 35, rel=0.05)
    assert "rank 2 (node 1) is slow" in found.text


def test_without_any_evidence_the_cause_is_unknown() -> None:
    job = Job(Judge())
    job.run(60)
    (found,) = job.run(30, slower(0))
    assert found.cause == ""
    assert "the cause is not known" in found.text


def test_who_is_slow_from_the_start_is_found_by_the_others() -> None:
    (found,) = Job(Judge()).run(30, slower(3))
    assert found.ranks == (3,)


def test_the_end_is_told_once_and_not_at_the_first_good_step() -> None:
    job = Job(Judge())
    job.run(60)
    assert len(job.run(30, slower(1))) == 1
    assert job.run(EACH) == []
    assert job.run(30, slower(1)) == []
    (gone,) = job.run(30)
    assert (gone.is_gone, gone.ranks) == (True, (1,))
    assert "no longer slow" in gone.text
    assert job.run(600) == []


def test_a_hiccup_is_no_straggler() -> None:
    job = Job(Judge())
    job.run(60)
    for _ in range(20):
        assert job.run(EACH, slower(1, by=1.0)) == []
        assert job.run(2 * EACH) == []


def test_slow_for_long_is_told_once_more() -> None:
    job = Job(Judge())
    job.run(60)
    first, lasting = job.run(600, slower(1))
    assert (first.is_lasting, lasting.is_lasting) == (False, True)


def test_ranks_that_do_other_things_are_compared_with_their_own_past() -> None:
    """As the stages of a pipeline."""
    job = Job(Judge())
    job.patterns = True

    def uneven(each: RankSummary) -> RankSummary:
        return each._replace(own=each.own * (1 + each.rank))

    assert job.run(120, uneven) == []
    (found,) = job.run(30, lambda each: uneven(slower(2)(each)))
    assert found.ranks == (2,)


def test_when_all_become_slow_nobody_is_to_blame() -> None:
    job = Job(Judge())
    job.run(60)
    assert job.run(120, lambda each: each._replace(own=2 * each.own)) == []


def test_a_slow_link_is_of_the_node_whose_connections_deliver_least() -> None:
    job = Job(Judge())
    job.run(60)
    job.rates = [4e9, 1e8]
    (found,) = job.run(
        30, lambda each: each._replace(moving=each.moving + 0.015, seconds=each.seconds + 0.015)
    )
    assert (found.kind, found.node, found.ranks, found.cause) == ("link", 1, (2, 3), "link")
    assert found.ratio == pytest.approx(4 / 3, abs=0.01)
    (gone,) = job.run(60)
    assert (gone.kind, gone.is_gone) == ("link", True)


def test_a_link_that_cannot_be_told_is_of_no_node() -> None:
    job = Job(Judge())
    job.run(60)
    (found,) = job.run(30, lambda each: each._replace(moving=each.moving + 0.015))
    assert (found.node, found.ranks) == (-1, ())
    assert "the network between nodes is slow" in found.text


def test_resources_that_are_used_up() -> None:
    job = Job(Judge(limits={"cpu": 0.9, "gpu": 0.9}), nodes=1)
    job.cpu = 0.5
    assert job.run(60) == []
    job.cpu = 0.97
    (found,) = job.run(60)
    assert (found.kind, found.cause, found.ranks) == ("resource", "cpu", (0, 1))
    assert found.text == "node 0: 97% of its cpu is used"
    job.cpu = 0.2
    (gone,) = job.run(60)
    assert gone.is_gone


def test_the_same_summary_counts_once() -> None:
    judge, job = Judge(), Job(Judge())
    job.run(60)
    seen = [job.node(node, slower(0)) for node in range(2)]
    for _ in range(50):
        assert judge.observe(seen) == []


def test_nonsense_hurts_nobody() -> None:
    chance = random.Random(3)

    def odd(count: int) -> Sequence[float]:
        return [chance.choice([0.0, 1e9, 1e-30, 0.03]) for _ in range(count)]

    judge = Judge(limits={"cpu": 0.9})
    for number in range(500):
        ranks = [
            RankSummary(chance.randrange(4), -1, chance.randrange(3), chance.randrange(2), *odd(8))
            for _ in range(chance.randrange(5))
        ]
        nodes = [NodeSummary(number, chance.randrange(3), ranks, *odd(5)) for _ in range(3)]
        for found in judge.observe(nodes):
            assert found.text
