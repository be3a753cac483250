"""verify() is silent on right models, and names what is wrong in others."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import mistakes, planted, planted_stages
from support.forked import Raised
from support.mistakes import MISTAKES, Mistake
from support.planted import Plant
from support.tensor_parallel import SEQUENCE, SPREAD
from support.worlds import run_in_one_world

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])
RIGHT = {
    f"{name}, dropout {dropout}": Mistake(plan, lambda bench: None, "", "", dropout=dropout)
    for name, plan in (("spread", SPREAD), ("sequence", SEQUENCE))
    for dropout in (0.0, 0.5)
}

RIGHT["with DistributedDataParallel"] = Mistake(SPREAD, mistakes.averaged_over("dp"), "", "")
PLANTED = {**planted.PLANTED, **planted_stages.PLANTED}
RIGHT_PLANTS = {**planted.RIGHT, **planted_stages.RIGHT}


@cache
def said(framework: str) -> dict[str, list[Any]]:
    bodies = {
        name: partial(_said, mistake, framework) for name, mistake in {**RIGHT, **MISTAKES}.items()
    }
    return run_in_one_world(4, bodies, 60.0)


def _said(mistake: Mistake, framework: str, rank: int) -> Any:
    found = mistakes.said_of(mistake, framework)
    return found, str(found)


@cache
def said_of_plants(framework: str) -> dict[str, list[Any]]:
    plants = {**RIGHT_PLANTS, **PLANTED}
    bodies = {name: partial(_said_of_plant, each, framework) for name, each in plants.items()}
    return run_in_one_world(4, bodies, 60.0)


def _said_of_plant(plant: Plant, framework: str, rank: int) -> Any:
    found = planted.said_of(plant, framework)
    return found, str(found)


def on_first_rank(results: list[Any]) -> Any:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace
        assert result == results[0]
    return results[0]


@with_both
@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_what_is_right(name: str, framework: str) -> None:
    found, text = on_first_rank(said(framework)[name])
    assert found, text
    assert found.compared > 100
    assert text == f"{found.compared} values are those of one process"


@with_both
@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named(name: str, framework: str) -> None:
    mistake = MISTAKES[name]
    if mistake.only not in ("", framework):
        pytest.skip(f"{framework} has the masks of one process")
    found, text = on_first_rank(said(framework)[name])
    assert not found
    assert (found.first.kind, found.first.name) == (mistake.kind, mistake.name), text
    assert mistake.why in text


@with_both
@pytest.mark.parametrize("name", RIGHT_PLANTS)
def test_nothing_is_said_of_what_is_right_on_other_axes(name: str, framework: str) -> None:
    found, text = on_first_rank(said_of_plants(framework)[name])
    assert found, text


@with_both
@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_on_other_axes_is_named(name: str, framework: str) -> None:
    plant = PLANTED[name]
    found, text = on_first_rank(said_of_plants(framework)[name])
    assert not found
    assert (found.first.kind, found.first.name) == (plant.kind, plant.name), text
    assert plant.why in text


@with_both
def test_what_cannot_be_verified_is_refused(framework: str) -> None:
    results = run_in_one_world(2, {"refused": partial(mistakes.refused, framework)}, 20.0)
    rows, step = on_first_rank(results["refused"])
    assert "a batch of 3 rows cannot be cut into 2 equal parts for the axes dp" in rows
    assert "no loss of the whole model to compare a step with: pass loss=" in step
