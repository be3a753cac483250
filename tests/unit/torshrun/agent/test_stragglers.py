"""Whose summaries the agent of the leader judges."""

from __future__ import annotations

from typing import Any, cast

from torsh_runtime.monitoring.summaries import NodeSummary, RankSummary, encode
from torsh_runtime.monitoring.wishes import Wish
from torshrun.agent.stragglers import StragglerMonitor


def told(number: int, node: int, own: float) -> bytes:
    ranks = [RankSummary(node, 177, 24, 1, 0.05, own, 0.0, 0.0)]
    return encode(NodeSummary(number, node, ranks))


def test_what_was_told_in_the_round_before_counts_for_nothing() -> None:
    found: list[Any] = []
    before = {"n0": told(9, 0, 0.02), "n1": told(9, 1, 0.02), "n2": told(9, 2, 0.04)}
    monitor = StragglerMonitor(
        group=cast("Any", None),
        wish=Wish(0.0, {}, replaces=False, tells=True),
        threshold=1.2,
        num_nodes=3,
        between=0.0,
        tell_leader=lambda told: None,
        replace=lambda node: False,
        announce=lambda finding, sequel: found.append(finding),
        read_gpus=tuple,
        known=before,
    )
    monitor.judge(before)
    assert found == []
    for number in (1, 2):
        monitor.judge({f"n{at}": told(number, at, 0.02 * (1 + (at > 1))) for at in range(3)})
    assert [each.ranks for each in found] == [(2,)]
