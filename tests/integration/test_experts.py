"""Experts that are spread over ranks compute what one process with all of them does."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import experts
from support.forked import Raised
from support.worlds import run_in_one_world

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
only_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])


@cache
def found(framework: str, ranks: int) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {
        name: partial(experts.differences, name, framework, ranks=ranks) for name in experts.CASES
    }
    for overlaps in (False, True) if ranks == 2 else ():
        bodies["sometimes", overlaps] = partial(experts.sometimes, framework, overlaps)
    if (framework, ranks) == ("nn", 2):
        bodies |= {"of one part": experts.of_one_part, "no tokens": experts.no_tokens}
    bodies["refused"] = partial(experts.refused, ranks=ranks)
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return results


@with_both
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", experts.CASES)
def test_is_what_one_process_computes(name: str, ranks: int, framework: str) -> None:
    for differences in whole(found(framework, ranks)[name]):
        assert max(differences.values()) < 1e-12, differences


@with_both
@pytest.mark.parametrize("overlaps", [False, True])
def test_ranks_that_leave_out_different_layers_average_behind_the_experts(
    overlaps: bool, framework: str
) -> None:
    for apart in whole(found(framework, 2)["sometimes", overlaps]):
        assert apart < 1e-9


def test_what_does_not_fit_is_refused_on_all_ranks() -> None:
    for said in whole(found("nn", 2)["refused"]):
        assert len(said) == 8
        assert "top_k is from 1 to 4" in said[0]
        assert "'tanh'" in said[1]
        assert "capacity_factor is above 0" in said[2]
        assert "6 to 9" in said[3]
        assert "'jax'" in said[4]
        assert "parameter 'router' with values of checksum " in said[5]
        assert "(2, 7) is not (…, 6)" in said[6]
        assert "finite, or None, not inf" in said[7]


@cache
def with_shared_tokens() -> dict[Any, list[Any]]:
    kinds = [("nn", "float32"), ("nn", "float64")]
    if importlib.util.find_spec("torch"):
        kinds += [("torch", dtype) for dtype in ("float32", "float64", "bfloat16")]
    bodies: dict[Any, Any] = {kind: partial(experts.shared_tokens, *kind) for kind in kinds}
    bodies |= {"sent": experts.rows_sent, "unlike": experts.unlike_tokens}
    return run_in_one_world(4, bodies, 60.0)


@with_both
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_ranks_with_the_same_tokens_get_the_same_bits(dtype: str, framework: str) -> None:
    if (framework, dtype) == ("nn", "bfloat16"):
        pytest.skip("numpy has no bfloat16")
    first, *others = whole(with_shared_tokens()[framework, dtype])
    for each in others:
        assert [name for name in first if each[name] != first[name]] == []


def test_one_rank_along_an_axis_has_nobody_to_compare_tokens_with() -> None:
    assert whole(found("nn", 2)["of one part"]) == [0.0, 0.0]


def test_ranks_may_have_no_tokens_together() -> None:
    assert whole(found("nn", 2)["no tokens"]) == [(0, 6), (0, 6)]


def test_each_token_is_sent_to_its_experts_by_one_rank() -> None:
    for sent, needed in whole(with_shared_tokens()["sent"]):
        assert sent == needed


def test_tokens_that_are_not_those_that_data_tells_of_are_refused_on_all_ranks() -> None:
    expected = {
        "same": "",
        "others at first": "were given different tokens",
        "others later": "ought to have the same tokens",
        "fewer later": "ought to have the same tokens",
        "a group": "pass axes of one mesh",
        "same, and counted for each": "leave the axis that they lie along out of data=",
    }
    for said in whole(with_shared_tokens()["unlike"]):
        assert {name for name, text in said.items() if not text} == {"same"}
        for name, text in expected.items():
            assert text in said[name], name


@cache
def routed_there(ranks: int) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {
        name: partial(experts.differences, name, "torch", ranks=ranks) for name in experts.CASES
    }
    if ranks == 2:
        bodies["waits"] = experts.waits
    if ranks == 4:
        for dtype in ("float32", "bfloat16"):
            bodies[dtype] = partial(experts.shared_tokens, "torch", dtype)
        bodies["unlike"] = partial(experts.unlike_tokens, framework="torch")
    bodies = {name: partial(experts.there, body) for name, body in bodies.items()}
    return run_in_one_world(ranks, bodies, 60.0)


@pytest.mark.torch
@only_torch
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", experts.CASES)
def test_routes_on_the_tokens_device_are_those_of_one_process(name: str, ranks: int) -> None:
    for differences in whole(routed_there(ranks)[name]):
        assert max(differences.values()) < 1e-12, differences


@pytest.mark.torch
@only_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_routes_on_the_tokens_device_give_the_bits_of_the_processors(dtype: str) -> None:
    wanted = whole(with_shared_tokens()["torch", dtype])
    assert whole(routed_there(4)[dtype]) == wanted


@pytest.mark.torch
@only_torch
def test_the_processor_waits_once_for_routes_on_the_tokens_device() -> None:
    for found in whole(routed_there(2)["waits"]):
        assert (found["exchanged"], found["waited"]) == (0, 1)
        assert "(4, 7) is not (…, 6)" in found["here"]
        assert "(3,) is not (…, 6)" in found["all"]
        assert "without gradients" in found["gradients"]


@pytest.mark.torch
@only_torch
def test_tokens_that_are_not_those_that_data_tells_of_are_noticed_on_their_device() -> None:
    for said in whole(routed_there(4)["unlike"]):
        assert {name for name, text in said.items() if not text} == {"same"}
        assert "ought to have the same tokens" in said["others later"]
        assert "ought to have the same tokens" in said["fewer later"]
