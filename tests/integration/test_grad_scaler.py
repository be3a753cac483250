"""Losses that are scaled, in models of which ranks have parts: all step, or none."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import grad_scaling
from support.forked import Raised
from support.grad_scaling import BARE, BROKEN, CASES, SCALE
from support.worlds import run_in_one_world

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])


@cache
def trained(framework: str) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {
        name: partial(grad_scaling.trained, name, framework, False) for name in CASES
    }
    if framework == "torch":
        bodies |= {
            ("bare", name): partial(grad_scaling.trained, name, framework, True) for name in BARE
        }
        bodies |= {"unfit": grad_scaling.unfit, "without_first": grad_scaling.without_first}
    return run_in_one_world(4, bodies, 60.0)


def of_all(framework: str, key: Any) -> list[Any]:
    results = trained(framework)[key]
    for result in results:
        assert not isinstance(result, Raised), result.error.trace
    return results


@with_both
@pytest.mark.parametrize("name", CASES)
def test_no_rank_steps_where_one_has_an_infinite_gradient(name: str, framework: str) -> None:
    for apart, scales in of_all(framework, name):
        assert apart < 1e-9
        own, whole = zip(*scales, strict=True)
        assert own == whole
        assert own[BROKEN + 1] == own[BROKEN] / 2
        assert max(own) > SCALE


@pytest.mark.parametrize("name", [pytest.param(each, marks=needs_torch) for each in BARE])
def test_scalers_of_torch_agree_on_replicas_and_parts(name: str) -> None:
    results = of_all("torch", ("bare", name))
    assert all(apart < 1e-9 for apart, _ in results)
    assert len({scales[BROKEN + 1][0] for _, scales in results}) == 1


@pytest.mark.parametrize("number", [pytest.param(each, marks=needs_torch) for each in range(6)])
def test_scalers_by_which_ranks_would_not_step_alike_are_refused(number: int) -> None:
    texts = (
        "torch.amp.grad_scaler.GradScaler, which knows of this rank's gradients only",
        "the scaler's process_group lacks ranks",
        "whose loss is scaled by 4.0",
        "ranks have scaled their losses differently",
        "rank 1, pp 0, dp 1: scaler is a torch.amp.grad_scaler.GradScaler",
        "whose loss is scaled by 65536.0 on rank(s) 1",
    )
    for said in of_all("torch", "unfit"):
        assert texts[number] in said[number]


@pytest.mark.torch
@pytest.mark.skipif(not has_torch, reason="needs torch")
def test_groups_may_have_no_parameters_on_some_ranks() -> None:
    assert of_all("torch", "without_first") == [[0.5, 0.5]] * 4
