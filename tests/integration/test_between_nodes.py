"""Every operation between nodes, by every strategy, in sub-groups, on few and many connections."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.hosts import Host, needs_hosts, plugged, run_on_hosts
from support.random_steps import STEPS, take_steps

import torsh_runtime as tr
from torsh_runtime.backends.native.settings import STRATEGIES, STRATEGY_VARIABLE
from torsh_runtime.comm.default import default_group

pytestmark = [needs_hosts, pytest.mark.netns]

LAYOUTS = [(1, 1), (2, 2), (1, 3), (2, 1, 2)]
"""Ranks of each host."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with plugged(3) as found:
        yield found


def work(rank: int) -> None:
    """Every operation twice, then at random also in sub-groups."""
    choose = random.Random(0)
    for step in STEPS * 2:
        step(default_group(), choose)
    for colour in (rank % 2, rank // 2):
        part = tr.split(colour)
        assert part is not None
        take_steps(part, random.Random(1), 20 if part.world_size > 1 else 0)
        take_steps(default_group(), choose, 5)


def run(hosts: list[Host], layout: tuple[int, ...]) -> list[Any]:
    return run_on_hosts(
        [host for host, ranks in zip(hosts, layout, strict=False) for _ in range(ranks)], work
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(
    hosts: list[Host], layout: tuple[int, ...], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STRATEGY_VARIABLE, strategy)
    assert run(hosts, layout) == [None] * sum(layout)


@pytest.mark.parametrize("streams", ["1", "7"])
def test_any_number_of_connections(
    hosts: list[Host], streams: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSH_SOCKET_STREAMS", streams)
    assert run(hosts, (2, 2)) == [None] * 4
