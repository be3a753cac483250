"""Optimizers that do not compute elementwise, on sharded models: one process's parameters."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
RANKS = (2, 3)
EXACT = 1e-12


@cache
def results(ranks: int) -> dict[Any, list[Any]]:
    from support import whole_optimizers

    with TemporaryDirectory() as folder:
        return run_in_one_world(ranks, whole_optimizers.bodies(ranks, Path(folder)), 60.0)


def each_of(ranks: int, name: Any) -> list[Any]:
    found = results(ranks)[name]
    for result in found:
        assert not isinstance(result, Raised), result.error.args[0]
    return found


def kinds() -> list[str]:
    if not importlib.util.find_spec("torch"):
        return []
    from support.whole_optimizers import KINDS

    return [*KINDS]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("way", [False, True, "loaded"], ids=["common", "gathered", "loaded"])
@pytest.mark.parametrize("kind", kinds())
def test_parameters_are_those_of_one_process(kind: str, way: Any, ranks: int) -> None:
    assert max(each_of(ranks, (kind, way))) < EXACT


HABITS = (
    "clears",
    "fails",
    "asks",
    "adds_groups",
    "replaces",
    "clips_by_parts",
    "goes_back_twice",
    "fails_in_forward",
    "set whole",
)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("habit", HABITS)
def test_habits_of_programs_end_as_in_one_process(habit: str, ranks: int) -> None:
    assert max(each_of(ranks, habit)) < EXACT


@pytest.mark.parametrize("ranks", RANKS)
def test_what_would_go_wrong_is_refused_on_all_ranks(ranks: int) -> None:
    first, *others = each_of(ranks, "refused")
    assert others == [first] * (ranks - 1)
    assert "on 'scale' would be called before gradients are averaged" in first["hook"]
    assert "the optimizer's step differs between ranks" in first["other parameters"]


@pytest.mark.parametrize("ranks", RANKS)
def test_parts_are_rows_and_then_whole_parameters(ranks: int) -> None:
    told = each_of(ranks, "shapes")
    count = len(told[0]) // 2
    for number, (_, _, whole) in enumerate(told[0]):
        parts = [each[number][1] for each in told]
        if whole:
            assert all(part[1:] == whole[1:] for part in parts)
            assert sum(part[0] for part in parts) == whole[0]
        if number >= count:
            assert parts.count(whole) == 1, "one rank owns it"


@pytest.mark.parametrize("ranks", RANKS)
def test_gradients_stay_when_owners_get_parameters(ranks: int) -> None:
    assert max(each_of(ranks, "kept")) < EXACT


@pytest.mark.parametrize("ranks", RANKS)
def test_muon_leaves_the_bits_that_it_leaves_on_replicas(ranks: int) -> None:
    if "Muon" not in kinds():
        pytest.skip("needs a torch that has Muon")
    assert all(each_of(ranks, "bits"))
