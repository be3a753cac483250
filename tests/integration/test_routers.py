"""Experts with routers and shared experts of the user's: one process's numbers."""

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
BODIES = ("right", "right_of_parts", "dropped", "refused")


@cache
def found() -> dict[str, list[Any]]:
    from support import routers

    return run_in_one_world(2, {name: getattr(routers, name) for name in BODIES}, 60.0)


def told(name: str) -> list[Any]:
    for result in found()[name]:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return found()[name]


@pytest.mark.parametrize("tokens", ["right", "right_of_parts"])
def test_any_router_has_the_numbers_of_one_process(tokens: str) -> None:
    for differences in told(tokens):
        assert differences.keys() == {"by_groups", "after_choice", "as_they_are"}
        assert max(differences.values()) < 1e-12, differences


def test_what_is_no_expert_gives_zeros() -> None:
    assert told("dropped") == [True, True]


def test_a_router_that_gives_something_else_is_named() -> None:
    for said in told("refused"):
        assert "the router gave (2, 2) and (2, 1) for 2 tokens" in said["weights"]
        assert "the router gave (1, 2) and (1, 2) for 2 tokens" in said["tokens"]
        assert "scores (tokens, 4)" in said["scores"]
