"""Medians over the other ranks of a large job."""

from __future__ import annotations

import random
from statistics import median

from torsh_runtime.monitoring.judging import Judge
from torsh_runtime.monitoring.peers import Peers, median_without
from torsh_runtime.monitoring.summaries import NodeSummary, RankSummary


def summary(rank: int, own: float, pattern: int = 1) -> RankSummary:
    return RankSummary(rank, 6, 6, pattern, 0.05, own, 0.0, 0.003)


def test_the_median_of_the_others_is_that_of_the_statistics_module() -> None:
    chance = random.Random(5)
    for size in range(2, 12):
        values = sorted(chance.choice([0.5, 1.0, chance.random()]) for _ in range(size))
        for place, value in enumerate(values):
            others = values[:place] + values[place + 1 :]
            assert median_without(values, value) == median(others)


def test_nobody_is_compared_with_who_does_other_things() -> None:
    ranks = [summary(0, 1.0), summary(1, 2.0), summary(2, 3.0), summary(3, 9.0, pattern=2)]
    peers = Peers(ranks)
    assert [peers.own_of_others(each) for each in ranks] == [2.5, 2.0, 1.5, None]
    assert [each.rank for each in peers.others(ranks[1])] == [0, 2]


def test_a_rank_is_compared_with_others_in_no_more_than_its_share_of_the_work() -> None:
    """8,192 ranks: if each were compared with each, this would take minutes."""
    judge = Judge()
    for number in range(1, 5):
        nodes = [
            NodeSummary(
                number,
                node,
                [
                    summary(rank, 0.04 if rank == 7 else 0.03)
                    for rank in range(8 * node, 8 * node + 8)
                ],
            )
            for node in range(1024)
        ]
        found = judge.observe(nodes)
    assert [each.ranks for each in found] == [(7,)]
