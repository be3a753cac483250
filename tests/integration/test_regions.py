"""Differentiable collectives: results and gradients are those of one process."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import regions, regions_in_place
from support.forked import Raised
from support.worlds import run_in_one_world

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])


@cache
def found(framework: str, ranks: int) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {
        name: partial(regions.differences, name, framework, ranks=ranks)
        for name in regions.cases(ranks)
    }
    bodies["overwriting"] = partial(regions.overwriting, framework, ranks=ranks)
    bodies["refused"] = partial(regions.refused, framework, ranks=ranks)
    bodies["alone"] = lambda rank: regions.alone(framework)
    if framework == "torch":
        bodies["compiled"] = regions.compiled
        bodies["twice"] = partial(regions.twice, ranks=ranks)
        bodies["transformed"] = regions.transformed
        for none_on in ((0,), (0, 1)):
            bodies["without", none_on] = partial(regions.without_gradients, none_on)
        bodies["saved"] = regions_in_place.overwritten_though_saved
        bodies["view"] = regions_in_place.overwriting_a_view
        bodies["read"] = regions_in_place.overwriting_what_is_read
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return results


@with_both
@pytest.mark.parametrize("name", regions.cases(2))
@pytest.mark.parametrize("ranks", [2, 3])
def test_is_what_one_process_computes(name: str, ranks: int, framework: str) -> None:
    for differences in whole(found(framework, ranks)[name]):
        gradients = {key: size for key, size in differences.items() if "gradient" in key}
        assert max(gradients.values()) < 1e-7, differences
        rest = [size for key, size in differences.items() if key not in gradients]
        assert max(rest) < 1e-12, differences


@with_both
@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_take_memory_that_they_may(ranks: int, framework: str) -> None:
    assert all(whole(found(framework, ranks)["overwriting"]))


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_sums_in_memory_of_views_are_sums() -> None:
    assert all(whole(found("torch", 2)["view"]))


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_sums_in_memory_that_is_needed_are_noticed() -> None:
    for said in whole(found("torch", 2)["saved"]):
        assert "modified by an inplace operation" in said


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_gradients_do_not_pass_by_what_is_written_to() -> None:
    for said in whole(found("torch", 2)["read"]):
        assert len(said) == 4
        assert all("would override the custom backward" in each for each in said)


@with_both
def test_a_group_of_one_rank_costs_nothing(framework: str) -> None:
    assert all(whole(found(framework, 2)["alone"]))


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_gradients_of_torch_have_gradients() -> None:
    assert all(whole(found("torch", 3)["twice"]))


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_functions_without_gradients() -> None:
    assert whole(found("torch", 2)["without", (0, 1)]) == ["None", "None"]
    first, second = whole(found("torch", 2)["without", (0,)])
    assert "no gradient on this rank and one on others, of a tensor of shape (2,)" in first
    assert second == "tensor([1., 1.])"


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_what_torch_transforms_is_refused() -> None:
    for said in whole(found("torch", 2)["transformed"]):
        assert len(said) == 6
        assert all("know backward passes only" in each for each in said)


@with_both
def test_what_does_not_fit_is_refused(framework: str) -> None:
    for said in whole(found(framework, 2)["refused"]):
        assert "for 3 ranks" in said[0]
        assert "dimension 1 of an array of shape (2, 3) has to be of size 4" in said[1]
        assert "of size 3, this rank's part" in said[2]
        assert "(5, 5) are not all of dimension 0" in said[3]
        assert "numpy.ndarray is no tensor" in said[4]


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_may_be_compiled() -> None:
    for apart in whole(found("torch", 2)["compiled"]):
        assert max(apart) == 0
