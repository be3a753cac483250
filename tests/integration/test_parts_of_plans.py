"""What is wrong with a model that a plan has cut is refused by name, before its first step."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]


@cache
def found() -> dict[Any, list[Any]]:
    from support import parts_of_plans

    bodies = {"steps": parts_of_plans.steps, "states": parts_of_plans.states}
    return run_in_one_world(2, bodies, 60.0)


def results(key: str) -> list[Any]:
    for result in found()[key]:
        assert not isinstance(result, Raised), result.error.args[0]
    return found()[key]


def test_gradients_of_a_part_of_what_all_ranks_have_are_named() -> None:
    first, other = results("steps")
    assert first == other
    assert first["norms in the plan"] == first["norms by hand"] == "nothing"
    assert "'0.q_norm.weight'" in first["norms"]
    assert "'0.k_norm.bias'" in first["norms"]
    assert "0.out" not in first["norms"]
    assert "'0.k.bias', '0.v.weight'" in first["one head of keys"]
    assert "with query_heads where these are more" in first["one head of keys"]


def test_the_state_of_layers_that_are_cut_is_whole() -> None:
    for shapes, rows in results("states"):
        assert rows == 8
        assert shapes == [(16, 16), (16, 16)]
