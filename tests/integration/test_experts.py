"""Experts that are spread over ranks compute what one process with all of them does."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import experts
from support.forked import Raised
from support.worlds import run_in_one_world

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])


@cache
def found(framework: str, ranks: int) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {
        name: partial(experts.differences, name, framework, ranks=ranks) for name in experts.CASES
    }
    for overlaps in (False, True) if ranks == 2 else ():
        bodies["sometimes", overlaps] = partial(experts.sometimes, framework, overlaps)
    bodies["refused"] = partial(experts.refused, ranks=ranks)
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return results


@with_both
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", experts.CASES)
def test_is_what_one_process_computes(name: str, ranks: int, framework: str) -> None:
    for differences in whole(found(framework, ranks)[name]):
        assert max(differences.values()) < 1e-12, differences


@with_both
@pytest.mark.parametrize("overlaps", [False, True])
def test_ranks_that_leave_out_different_layers_average_behind_the_experts(
    overlaps: bool, framework: str
) -> None:
    for apart in whole(found(framework, 2)["sometimes", overlaps]):
        assert apart < 1e-9


def test_what_does_not_fit_is_refused_on_all_ranks() -> None:
    for said in whole(found("nn", 2)["refused"]):
        assert len(said) == 8
        assert "top_k is from 1 to 4" in said[0]
        assert "'tanh'" in said[1]
        assert "capacity_factor is above 0" in said[2]
        assert "6 to 9" in said[3]
        assert "'jax'" in said[4]
        assert "router's values" in said[5]
        assert "(2, 7) is not (…, 6)" in said[6]
        assert "finite, or None, not inf" in said[7]
