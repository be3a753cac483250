"""FullyShardedDataParallel in mixed precision, and the scaler of its losses."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
RANKS = 2
NAMES = {
    "bfloat16": "torch.bfloat16",
    "reduced in float32": "torch.bfloat16",
    "only reduced": "torch.float32",
    "float16": "torch.float16",
}
"""Options by name, and the dtype of outputs."""
STRATEGIES = ("full", "grad-and-optimizer", "none")


@cache
def found() -> dict[Any, list[Any]]:
    from support import fsdp_precision

    bodies: dict[Any, Any] = {
        (name, strategy, gathers): partial(
            fsdp_precision.together, name, strategy, gathers, ranks=RANKS
        )
        for name in NAMES
        for strategy in STRATEGIES
        for gathers in (False, True)
    }
    for name in NAMES:
        bodies[name] = lambda rank, name=name: rank or fsdp_precision.alone(name, RANKS)
    for gathers in (False, True):
        bodies["accumulates", gathers] = partial(fsdp_precision.accumulates, gathers)
        for dtype in ("float16", "bfloat16", "float32"):
            bodies["nn", dtype, gathers] = partial(
                fsdp_precision.of_nn, dtype, gathers, ranks=RANKS
            )
    for each in ("keeps_low", "does_not_cast", "scaled", "scaled_sparse", "scaler_misused"):
        bodies[each] = getattr(fsdp_precision, each)
    return run_in_one_world(RANKS, bodies, 60.0)


def results(key: Any) -> list[Any]:
    for result in found()[key]:
        assert not isinstance(result, Raised), result.error.args[0]
    return found()[key]


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NAMES)
def test_rounds_where_it_is_told_to(name: str, strategy: str, gathers: bool) -> None:
    losses, state = results(name)[0]
    for rank, (own, values, dtype) in enumerate(results((name, strategy, gathers))):
        np.testing.assert_allclose(own, [each[rank] for each in losses], rtol=0.02)
        assert dtype == NAMES[name]
        for key, value in state.items():
            np.testing.assert_allclose(values[key], value, rtol=0.02, atol=0.01)


def test_gradients_stay_as_they_were_averaged() -> None:
    for each in results("keeps_low"):
        assert each == [{"torch.bfloat16"}, {"torch.float32"}, {"torch.bfloat16"}] * 2


def test_inputs_are_cast_by_the_program_if_it_says_so() -> None:
    for said in results("does_not_cast"):
        assert "dtype" in said


@pytest.mark.parametrize("gathers", [False, True])
def test_accumulates(gathers: bool) -> None:
    for once, added, unsynced in results(("accumulates", gathers)):
        np.testing.assert_allclose(added, once, rtol=1e-6)
        np.testing.assert_allclose(unsynced, once, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_models_of_nn(dtype: str, gathers: bool) -> None:
    pairs = zip(results(("nn", dtype, gathers)), results(("nn", "float32", gathers)), strict=True)
    for losses, expected in pairs:
        assert losses != expected
        np.testing.assert_allclose(losses, expected, rtol=0.1)


def test_no_rank_steps_if_gradients_of_one_are_infinite() -> None:
    for steps, is_torchs in results("scaled"):
        assert steps == [([1.0], 8.0), ([0.0], 4.0), ([1.0], 4.0), ([1.0], 8.0)]
        assert is_torchs


def test_sparse_gradients_are_judged_by_their_sums() -> None:
    row = [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]
    for steps in results("scaled_sparse"):
        assert steps == [row, [[0.0, 0.0]] * 3]


def test_a_scaler_says_how_it_is_used() -> None:
    for divided, stepped, factor, update, values in results("scaler_misused"):
        assert "divided already" in divided
        assert "step() was called already" in stepped
        assert "growth_factor" in factor
        assert "follows step()" in update
        assert values == "[-1.0, -1.0]"
