"""Attention over sequences that ranks have parts of is that of one process."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support import context_parallel
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])


@cache
def found(framework: str, ranks: int) -> dict[Any, list[Any]]:
    for name in context_parallel.CASES:  # here once, and not on each rank
        context_parallel.alone(name, context_parallel.made(framework), ranks)
    bodies: dict[Any, Any] = {
        (name, method): partial(context_parallel.differences, name, method, framework, ranks=ranks)
        for name in context_parallel.CASES
        for method in context_parallel.METHODS
    }
    bodies["repeats"] = partial(context_parallel.repeats, framework, ranks=ranks)
    bodies["order"] = partial(context_parallel.order, ranks=ranks)
    bodies["refused"] = partial(context_parallel.refused, ranks=ranks)
    if framework == "torch":
        bodies["rounded"] = partial(context_parallel.rounded, ranks=ranks)
        bodies["half"] = partial(context_parallel.half_precision, ranks=ranks)
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return results


@with_both
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("method", context_parallel.METHODS)
@pytest.mark.parametrize("name", context_parallel.CASES)
def test_is_what_one_process_computes(name: str, method: str, ranks: int, framework: str) -> None:
    for differences in whole(found(framework, ranks)[name, method]):
        assert all(each < 1e-12 for each in differences), differences


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_is_what_one_process_computes_on_four_ranks() -> None:
    for rank in run_processes(4, context_parallel.all_differences, 60.0):
        for name, differences in whole([rank])[0].items():
            assert all(each < 1e-12 for each in differences), name


@with_both
def test_runs_have_the_same_bits(framework: str) -> None:
    assert all(whole(found(framework, 3)["repeats"]))


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_blocks_of_16_bits_are_merged_in_more() -> None:
    assert max(whole(found("torch", 2)["half"])) < 0.03


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_products_of_16_bits_are_as_near_as_those_of_one_process() -> None:
    for each in whole(found("torch", 2)["rounded"]):
        for dtype, (far, alone) in each.items():
            assert far < 3 * alone, dtype


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_is_what_one_process_computes_by_kernels_of_gpus() -> None:
    from support import gpu_attention

    body = partial(gpu_attention.of_ranks, ranks=2)
    for each in whole(run_processes(2, body, 60.0)):
        assert each.pop("half") < 0.03
        for dtype, (far, alone) in each.pop("rounded").items():
            assert far < 3 * alone, dtype
        for name, differences in each.items():
            assert all(far < 1e-5 for far in differences), name


def test_a_rank_has_an_early_and_a_late_chunk() -> None:
    first, second = whole(found("nn", 2)["order"])
    assert first["positions"].tolist() == [0, 1, 8, 9, 10]
    assert second["positions"].tolist() == [2, 3, 4, 5, 6, 7]
    assert second["within"].tolist() == [2, 3, 0, 1, 2, 3]
    for each in (first, second):
        tokens = np.arange(22).reshape(2, 11)
        assert (each["own"] == tokens[:, each["positions"]]).all()
        assert (each["whole"] == tokens).all()
        assert (each["gradient"] == 3 * each["own"]).all()


@with_both
@pytest.mark.parametrize("ranks", [1, 2])
def test_sequences_without_tokens_are_refused(ranks: int, framework: str) -> None:
    """torch's kernel divides by their number, which ends the process."""
    body = partial(context_parallel.without_tokens, framework)
    for said in whole(run_processes(ranks, body, 20.0)):
        assert "sequences without tokens" in said


def test_what_does_not_fit_is_refused_on_all_ranks() -> None:
    for said in whole(found("nn", 2)["refused"]):
        assert len(said) == 24
        assert "do not fit" in said[0]
        assert "on rank(s) 0" in said[1]
        assert "of 9 it has to have" in said[2]
        assert "causal=True" in said[3]
        assert "'rings'" in said[4]
        assert "3 heads and 3 of keys" in said[5]
        assert "(0, 3, 9)" in said[6]
        assert "2 rows are given for a batch of 1" in said[7]
        assert "no early and late chunk" in said[8]
        assert "takes 4 tokens at least" in said[9]
        assert "not cumulative lengths from 0 to 8" in said[10]
        assert "documents=[]" in said[11]
        assert "documents=[0, 2.5, 8]" in said[12]
        assert "length='long'" in said[13]
        assert "no gradient flows" in said[14]
        assert "(4, 4, 4)" in said[15]
        assert "several dtypes, float32, float64" in said[16]
        assert "a token looks at itself at least" in said[17]
        assert "window=2.5 is no number" in said[18]
        assert "window=4" in said[19]
        assert "softcap=-1.0" in said[20]
        assert "sinks give 3 heads one score each" in said[21]
        assert f"(batch, {4 * 2})" in said[22]
        assert "attention_mask of 2 rows are given for a batch of 1" in said[23]
