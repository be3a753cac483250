"""Models cut by tr.parallelize() under torch.compile: the numbers that they have without it."""

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
    from support import compiled_layers

    bodies = {
        name: getattr(compiled_layers, name)
        for name in ("right", "reentrant", "drops", "collectives", "attention", "errors")
    }
    return run_in_one_world(2, bodies, 240.0)


def of(name: str) -> list[Any]:
    for result in found()[name]:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return found()[name]


def test_graphs_are_whole_few_and_right() -> None:
    for results in of("right"):
        assert max(far for far, _ in results.values()) < 1e-9, results
        graphs = {name: graphs for name, (_, graphs) in results.items()}
        assert graphs == {
            "whole": 1,
            "sequences": 1,
            "lengths": 2,
            "blocks": 1,
            "checkpoints": 1,
            "inductor": 1,
        }


def test_checkpoints_by_a_second_pass_are_right() -> None:
    assert max(of("reentrant")) < 1e-9


def test_dropout_keeps_ranks_alike() -> None:
    assert of("drops") == [True, True]


def test_layers_that_share_an_input_sum_its_gradient_once() -> None:
    assert of("collectives") == [2, 2]


def test_attention_over_ranks_is_in_the_graph() -> None:
    for differences in of("attention"):
        assert max(differences) < 1e-9


def test_errors_are_those_of_what_is_not_compiled() -> None:
    for said in of("errors"):
        assert said["rows"].startswith("IndexError: tokens: indices from 13 to 25 came")
        assert "ConfigError: the input of 'tokens' differs between ranks" in said["input"]
        assert "ConfigError: 0: an input of shape (2, 3) came to rank" in said["size"]
        assert "CommAborted: " in said["ended"]
