"""Constructors ask the other ranks once, and all ranks are told the same of what does not fit."""

from __future__ import annotations

from functools import cache
from typing import Any

from support import asking
from support.forked import Raised
from support.worlds import run_processes

PATIENCE = 20.0
ONCE = (
    "DeviceMesh",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "MixtureOfExperts",
    "parallelize",
    "ColumnParallelLinear",
)
"""Constructors that ask one group."""
MORE = {
    "hybrid FullyShardedDataParallel": 2,  # those to shard over, and the replicas
    "MixtureOfExperts with tokens of others": 2,  # who has experts, and who has tokens
    "PipelineParallel": 3,  # what is made, and what became of it: on replicas, and on all
    "PipelineParallel with an example": 3,
    "PipelineParallel that wraps": 4,  # and the wrapper
    "DistributedDataParallel of experts": 3,  # and the experts
}


def whole(results: list[Any]) -> list[Any]:
    for each in results:
        assert not isinstance(each, Raised), each.error.trace
    return results


@cache
def differing() -> list[Any]:
    return whole(run_processes(2, asking.differing, PATIENCE))


def said(name: str) -> str:
    """The text on both ranks, which is the same, and came before a timeout."""
    (first, soon), (second, as_soon) = (each[name] for each in differing())
    assert first == second
    assert max(soon, as_soon) < PATIENCE / 2
    return str(first)


def test_constructors_ask_once() -> None:
    for found in whole(run_processes(4, asking.constructors, PATIENCE)):
        asked = {name: counts.get("numbers", 0) for name, counts in found.items()}
        assert asked == {**dict.fromkeys(ONCE, 1), **MORE}


def test_constructors_do_nothing_else_but_send_values() -> None:
    for found in whole(run_processes(4, asking.constructors, PATIENCE)):
        others = {kind for counts in found.values() for kind in counts}
        assert others == {"numbers", "broadcast"}


def test_ranks_in_two_constructors_are_told_of_both() -> None:
    assert said("two constructors") == (
        "ConfigError: ranks call different things: DistributedDataParallel on rank(s) 0, "
        "FullyShardedDataParallel on rank(s) 1. Make the same calls in the same order on all ranks"
    )
    assert "MixtureOfExperts on rank(s) 0, parallelize on rank(s) 1. " in said("three")


def test_what_is_wrong_on_one_rank_is_told_on_all() -> None:
    assert "rank 1: DistributedDataParallel has no option no_such; " in said("a field of one rank")
    assert "rank 1: the model has no parameter that" in said("a model of one rank")
    assert "rank 1: MixtureOfExperts: top_k is from 1 to 2" in said("an option of one rank")
    assert "rank 1: 'none' in the plan matches no module" in said("a part that is no part")


def test_what_is_wrong_on_all_ranks_is_told_without_a_rank() -> None:
    assert said("the same on both").startswith("ConfigError: MixtureOfExperts: top_k is from 1")


def test_a_rank_that_calls_what_agrees_on_nothing_is_no_hang() -> None:
    (text, soon), (other, _) = (each["no agreement"] for each in differing())
    assert text
    assert other == ""
    assert soon < PATIENCE / 2
