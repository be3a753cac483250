"""Summaries of a node's steps stay small, and what is no summary hurts nobody."""

from __future__ import annotations

import math
import random

import pytest

from torsh_runtime.monitoring.summaries import (
    MOST_BYTES,
    MOST_RANKS,
    NodeSummary,
    RankSummary,
    decode,
    encode,
)


def rank(number: int, own: float = 0.03, **more: object) -> RankSummary:
    sections = [("data", 0.01), ("forward", 0.02)]
    made = RankSummary(number, 7, 6, 99, 0.05, own, 0.01, 0.002, sections=sections)
    return made._replace(**more)  # type: ignore[arg-type]


def test_they_are_read_as_they_were_made() -> None:
    made = NodeSummary(5, 3, [rank(24), rank(25, queued=0.5)], cpu=0.5, rate=1e9)
    found = decode(encode(made))
    assert found is not None
    assert (found.number, found.node, found.gpu, found.rate) == (5, 3, None, 1e9)
    assert found.cpu == pytest.approx(0.5, abs=1e-4)
    assert [each.rank for each in found.ranks] == [24, 25]
    assert found.ranks[1].queued == pytest.approx(0.5)
    assert dict(found.ranks[0].sections) == pytest.approx({"data": 0.01, "forward": 0.02})


def test_of_many_ranks_the_slowest_and_the_fastest_are_told() -> None:
    made = NodeSummary(1, 0, [rank(number, own=number) for number in range(200)])
    content = encode(made)
    assert len(content) <= MOST_BYTES
    found = decode(content)
    assert found is not None
    told = sorted(each.rank for each in found.ranks)
    assert (len(told), told[0], told[-1]) == (MOST_RANKS, 0, 199)
    assert MOST_RANKS >= 8


def test_odd_figures_are_told_as_something_that_can_be() -> None:
    odd = rank(1, own=math.nan, waiting=-1.0, moving=math.inf, step=1 << 40, steps=1 << 20)
    odd = odd._replace(sections=[("\x1b[2J" + "ä" * 20, math.inf)])
    found = decode(encode(NodeSummary(1 << 40, -1, [odd], cpu=math.nan, memory=7.0)))
    assert found is not None
    assert (found.cpu, found.memory) == (None, 1.0)
    (told,) = found.ranks
    assert (told.own, told.waiting, told.moving) == (0.0, 0.0, 0.0)
    assert told.sections[0][0].isprintable()


@pytest.mark.parametrize("seed", range(50))
def test_what_is_no_summary_is_none(seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(encode(NodeSummary(1, 2, [rank(1), rank(2)])))
    for _ in range(chance.randrange(1, 10)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    for broken in (content, content[: chance.randrange(len(content))], chance.randbytes(300)):
        found = decode(bytes(broken))
        for each in found.ranks if found else ():
            assert all(math.isfinite(figure) and figure >= 0 for figure in each[4:12])
