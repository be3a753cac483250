"""DistributedDataParallel on models of nn."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support import ddp_nn
from support.forked import Raised
from support.worlds import run_in_one_world


@cache
def in_world(ranks: int) -> dict[Any, list[Any]]:
    """What each rank's part of all trainings returned; of those of two ranks, of all else, too."""
    bodies: dict[Any, Any] = {}
    for name in ddp_nn.COURSES:
        for run in range(2):
            bodies[name, run] = partial(ddp_nn.together, name, ranks=ranks)
    if ranks == 2:
        bodies["spread"] = partial(ddp_nn.together, "plain", ranks=2, spread=True)
        bodies["unused"] = partial(ddp_nn.unused, ranks=2)
        bodies["copied"] = partial(ddp_nn.copied, ranks=2)
        for name in COMPRESSED:
            bodies[name] = partial(ddp_nn.compressed, ranks=2, name=name)
    return run_in_one_world(ranks, bodies, 30.0)


def ranks_of(ranks: int, key: Any) -> list[Any]:
    results = in_world(ranks)[key]
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


COMPRESSED = {"topk:0.1": 0.2, "powersgd:2": 0.2, "int8": 0.2, "onebit": 0.8, "bf16": 0.2}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ddp_nn.COURSES)
def test_trains_as_one_process_does(name: str, ranks: int) -> None:
    expected = ddp_nn.alone(name, ranks)
    states, again = (ranks_of(ranks, (name, run)) for run in range(2))
    for key, value in expected.items():
        np.testing.assert_allclose(states[0][key], value, rtol=2e-3, atol=2e-4)
        for state in [*states[1:], *again]:
            assert np.array_equal(state[key], states[0][key]), key


def test_with_an_optimizer_spread_over_ranks() -> None:
    expected = ddp_nn.alone("plain", 2)
    for state in ranks_of(2, "spread"):
        for key, value in expected.items():
            np.testing.assert_allclose(state[key], value, rtol=2e-3, atol=2e-4)


def test_a_missing_gradient_is_told_by_all() -> None:
    first, second = ranks_of(2, "unused")
    assert first == second
    assert first.startswith("rank 1: parameters 'spare.weight', 'spare.bias' got no gradient")


@pytest.mark.parametrize(("name", "most"), COMPRESSED.items())
def test_compressed_gradients_train(name: str, most: float) -> None:
    for loss, is_same in ranks_of(2, name):
        assert is_same
        assert loss < most


def test_copied_and_pickled_wrappers() -> None:
    first, second = ranks_of(2, "copied")
    assert first == second
    assert first == [first[0]] * 3
