"""DistributedDataParallel on models of nn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import ddp_nn
from support.worlds import Raised, run_processes


def ranks_of(ranks: int, body: Any) -> list[Any]:
    results = run_processes(ranks, body, 30.0)
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ddp_nn.COURSES)
def test_trains_as_one_process_does(name: str, ranks: int) -> None:
    expected = ddp_nn.alone(name, ranks)
    states = ranks_of(ranks, lambda rank: ddp_nn.together(name, rank, ranks))
    again = ranks_of(ranks, lambda rank: ddp_nn.together(name, rank, ranks))
    for key, value in expected.items():
        np.testing.assert_allclose(states[0][key], value, rtol=2e-3, atol=2e-4)
        for state in [*states[1:], *again]:
            assert np.array_equal(state[key], states[0][key]), key


def test_with_an_optimizer_spread_over_ranks() -> None:
    expected = ddp_nn.alone("plain", 2)
    for state in ranks_of(2, lambda rank: ddp_nn.together("plain", rank, 2, spread=True)):
        for key, value in expected.items():
            np.testing.assert_allclose(state[key], value, rtol=2e-3, atol=2e-4)


def test_a_missing_gradient_is_told_by_all() -> None:
    first, second = ranks_of(2, lambda rank: ddp_nn.unused(rank, 2))
    assert first == second
    assert first.startswith("rank 1: parameters 'spare.weight', 'spare.bias' got no gradient")


@pytest.mark.parametrize(
    ("name", "most"),
    [("topk:0.1", 0.2), ("powersgd:2", 0.2), ("int8", 0.2), ("onebit", 0.8), ("bf16", 0.2)],
)
def test_compressed_gradients_train(name: str, most: float) -> None:
    for loss, is_same in ranks_of(2, lambda rank: ddp_nn.compressed(rank, 2, name)):
        assert is_same
        assert loss < most
