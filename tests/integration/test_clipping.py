"""Norms of gradients on a mesh are one process's, the same bits on all ranks, in few exchanges."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import pytest
from support import clipping
from support.forked import Raised
from support.grad_scaling import CASES
from support.worlds import run_in_one_world

EXCHANGES = {
    "replicas": [4],
    "parts": [4],
    "shards": [4],
    "stages and parts": [2, 4],
    "stages and replicas": [4],
    "stages and shards": [4],
    "zero bubble": [4],
    "experts in stages": [2, 4],
}
"""Ranks that told each other their sums: along an axis, and in the end all."""
FIRST = {"stages and shards": [2, 4]}
"""The same of the first stage, whose units alone are large enough to be sharded."""
APART = {"rounding": 1e-9, "another gradient": 1.0, "no number": math.nan, "infinite": math.inf}


@cache
def found() -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {name: partial(clipping.norms, name) for name in CASES}
    bodies |= {name: partial(clipping.apart, by) for name, by in APART.items()}
    bodies["unlike stages"] = clipping.of_unlike_stages
    bodies["in a container"] = clipping.in_a_container
    return run_in_one_world(4, bodies, 30.0)


def of_all(key: str) -> list[Any]:
    for result in found()[key]:
        assert not isinstance(result, Raised), result.error.trace
    return found()[key]


@pytest.mark.parametrize("name", CASES)
def test_each_element_counts_once_in_one_exchange_with_the_check(name: str) -> None:
    results = of_all(name)
    assert len({norm for norm, _, _ in results}) == 1
    for norm, expected, sizes in results:
        assert norm == pytest.approx(expected, rel=1e-9)
        assert sizes in (EXCHANGES[name], FIRST.get(name))


def test_stages_that_are_wrapped_differently_have_one_norm() -> None:
    results = of_all("unlike stages")
    for norms in zip(*results, strict=True):
        assert len({norm for norm, _ in norms}) == 1
    for norm, expected in results[0]:
        assert norm == pytest.approx(expected, rel=1e-9)


def test_tied_weights_count_once_whatever_module_the_stages_are_in() -> None:
    for norm, expected in (each for result in of_all("in a container") for each in result):
        assert norm == pytest.approx(expected, rel=1e-9)


def test_gradients_that_differ_by_rounding_have_one_norm() -> None:
    assert len({*of_all("rounding")}) == 1
    assert len({*of_all("another gradient")}) == 2
    assert all(map(math.isnan, of_all("no number")))
    assert {*of_all("infinite")} == {math.inf}
