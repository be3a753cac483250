"""FullyShardedDataParallel on models of nn."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support import fsdp_nn
from support.forked import Raised
from support.worlds import run_in_one_world

STRATEGIES = ("full", "grad-and-optimizer", "none", "checkpointing")


@cache
def found(ranks: int) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {
        (strategy, gathers): partial(fsdp_nn.together, strategy, gathers, ranks=ranks)
        for strategy in STRATEGIES
        for gathers in (False, True)
    }
    bodies["alone"] = lambda rank: fsdp_nn.alone(ranks)
    bodies["refusals"] = fsdp_nn.refusals
    bodies["broken forward"] = fsdp_nn.broken_forward
    bodies["facts"] = partial(fsdp_nn.facts, ranks=ranks)
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_trains_as_one_process_does(strategy: str, gathers: bool, ranks: int) -> None:
    results = whole(found(ranks)[strategy, gathers])
    for name, value in whole(found(ranks)["alone"])[0].items():
        np.testing.assert_allclose(results[0][name], value, rtol=1e-3, atol=1e-4)
        assert all((each[name] == results[0][name]).all() for each in results)


def test_zero_grad_after_a_forward_pass_that_failed_removes_gradients() -> None:
    for are_fresh in whole(found(2)["broken forward"]):
        assert are_fresh == [True] * 4


def test_what_is_wrong_is_said_on_all_ranks() -> None:
    for said in whole(found(2)["refusals"]):
        assert len(said) == 8
        assert "of shape (2, 3)" in said[0]
        assert "min_num_params=0" in said[1]
        assert "no parameters" in said[2]
        assert "no option shard" in said[3]
        assert "'full'" in said[4]
        assert "DeviceMesh" in said[5]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_have_parts_that_make_the_whole(ranks: int) -> None:
    facts = whole(found(ranks)["facts"])
    assert sum(each["ratio"] for each in facts) == pytest.approx(1)
    assert sum(each["own"] for each in facts) == facts[0]["whole"]
    for name in facts[0]["pieces"]:
        pieces = [each["pieces"][name] for each in facts if each["pieces"][name].size]
        assert all(a.end == b.start for a, b in pairwise(pieces))
        assert sum(piece.size for piece in pieces) == np.prod(pieces[0].global_shape)
    expected = [p.shape for p in fsdp_nn.net(0).parameters()]
    for each in facts:
        assert each["shapes"] == expected
        assert each["values"] == {7.0}
        for name, value in fsdp_nn.net(3).state_dict().items():
            assert (each["loaded"][name] == value).all()
