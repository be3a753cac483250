"""Uneven batches, spread optimizers, normalisation over ranks, averages of trees."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]


OPTIMIZERS = ("Adam", "SGD", "AdamW")
ASIDE = (
    "early_end",
    "batch_norm_aside",
    "optimizer_grows",
    "averages_of_numbers",
    "empty_batches",
    "averaged_halves",
    "one_wants_gradients",
)


@cache
def in_world(ranks: int) -> dict[Any, list[Any]]:
    """What each rank's part of ddp_companions returned, with all that tests ask for."""
    import torch
    from support import ddp_companions

    calls: list[tuple[Any, ...]] = [
        *(("join", *options) for options in product((True, False), (1, 2))),
        *(("optimizer", name) for name in OPTIMIZERS),
        *(("batch_norm", *each) for each in product((1, 2), (torch.float32, torch.float64))),
    ]
    if ranks == 2:
        calls += [(name,) for name in ASIDE]
        calls += [("join_in_parts", accumulates) for accumulates in (True, False)]
        calls += [("batch_norm_with_unused", overlaps) for overlaps in (None, False, True)]
        if importlib.util.find_spec("jax"):
            calls.append(("averages",))

    def body(call: tuple[Any, ...], rank: int) -> Any:
        name, *arguments = call
        return getattr(ddp_companions, name)(rank, ranks, *arguments)

    return run_in_one_world(ranks, {call: partial(body, call) for call in calls}, 30.0)


def ranks_of(name: str, ranks: int, *arguments: Any) -> list[Any]:
    results = in_world(ranks)[name, *arguments]
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_join_goes_on_for_ranks_without_batches(ranks: int, initial: bool, passes: int) -> None:
    results = ranks_of("join", ranks, initial, passes)
    for found, expected in results:
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert found == results[0][0]


def test_join_can_end_the_loop_of_all() -> None:
    first, second = ranks_of("early_end", 2)
    assert first == second
    assert first.startswith("GradientError: rank 0: has no batch left: give all ranks as many")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_optimizer_spread_over_ranks_steps_as_one(ranks: int, name: str) -> None:
    results = ranks_of("optimizer", ranks, name)
    total = 0
    for found, expected, kept, options in results:
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert options["lr"] == 0.1 * 0.5
        total += kept
    if name != "SGD":  # step, mean and variance of 4 parameters
        assert total == 12
        assert all(kept < total or ranks == 1 for *_, kept, _ in results)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_batch_norm_over_ranks_is_that_of_one_process(ranks: int, dims: int, kind: str) -> None:
    import torch

    ranks_of("batch_norm", ranks, dims, getattr(torch, kind))


def test_averages_of_trees() -> None:
    pytest.importorskip("jax")
    assert ranks_of("averages", 2) == [[0.5, 0.5, 0.5, None, 0.5]] * 2


@pytest.mark.parametrize("accumulates", [True, False])
def test_join_with_passes_that_are_not_averaged(accumulates: bool) -> None:
    first, second = ranks_of("join_in_parts", 2, accumulates)
    assert first == second


def test_batch_norm_in_evaluation_and_in_half_precision() -> None:
    assert ranks_of("batch_norm_aside", 2) == [[(True, True)] * 6] * 2


def test_a_spread_optimizer_takes_more_parameters() -> None:
    for (numbers, steps), (expected, expected_steps) in ranks_of("optimizer_grows", 2):
        assert numbers == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert steps == expected_steps == [3, 2]


def test_averages_of_ints_and_of_dicts_in_any_order() -> None:
    assert ranks_of("averages_of_numbers", 2) == [({"n": 0.5, "a": 1.0}, [1.0, 5.0])] * 2


def test_batch_norm_of_no_rows_at_all() -> None:
    empty, some = ([0.0, 0.0, 0.0], 0), ([0.45, 0.55, 0.65], 1)
    for found in ranks_of("empty_batches", 2):
        for (mean, count), finite, expected in zip(
            found[::2], found[1::2], (empty, some), strict=True
        ):
            assert (mean, count) == (pytest.approx(expected[0]), expected[1])
            assert finite


def test_averages_of_batch_norm_in_16_bits_round_no_weight() -> None:
    assert ranks_of("averaged_halves", 2) == [126.5] * 2  # what is next to a third of 380


def test_batch_norm_of_which_one_rank_alone_wants_gradients() -> None:
    (has_none, text), (other_has_none, other_text) = ranks_of("one_wants_gradients", 2)
    assert (has_none, other_has_none) == (False, True)
    assert text == other_text
    assert text.startswith("ConfigError: SyncBatchNorm: rank(s) 1 record no gradients")


@pytest.mark.parametrize("overlaps", [None, False, True])
def test_batch_norm_where_ranks_leave_out_different_layers(overlaps: bool | None) -> None:
    first, second = ranks_of("batch_norm_with_unused", 2, overlaps)
    assert first == second
