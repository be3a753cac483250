"""Experts of models of transformers, spread over ranks: one process's numbers, or refused."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
    pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers"),
]
BODIES = ("strange", "refused", "few_tokens", "no_numbers", "precisions", "right", "written")
LAST = ("verified", "saved")


@cache
def found() -> dict[str, list[Any]]:
    from support import expert_models

    bodies = {name: getattr(expert_models, name) for name in (*BODIES, *LAST)}
    return run_in_one_world(2, bodies, 240.0)


def told(name: str) -> list[Any]:
    for result in found()[name]:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return found()[name]


def test_families_have_the_numbers_of_one_process() -> None:
    for result in told("right"):
        assert {name: wrong for name, wrong in result.items() if wrong} == {}


def test_and_with_layers_cut_besides() -> None:
    from support import expert_models

    assert run_processes(4, expert_models.on_two_axes, 240.0) == [""] * 4


def test_texts_are_the_same() -> None:
    assert told("written") == [[True, True]] * 2


def test_ranks_with_hardly_any_tokens_take_part() -> None:
    for differences in told("few_tokens"):
        assert max(differences.values()) < 1e-12, differences


def test_what_is_no_number_stays_where_it_is() -> None:
    assert told("no_numbers") == [[4, 1], [4, 0]]


def test_other_precisions_and_kernels_are_rounded_alike() -> None:
    for differences in told("precisions"):
        for name, apart in differences.items():
            assert apart < (1e-5 if name.startswith("float32") else 2e-2), name


def test_verify_compares_them() -> None:
    for is_fine, wrong in told("verified"):
        assert is_fine
        assert "the gradient of 'model.layers." in wrong
        assert ".mlp.experts." in wrong


def test_checkpoints_are_read_by_ranks_with_other_experts() -> None:
    assert told("saved") == [True, True]


def test_experts_of_strangers_are_spread() -> None:
    assert max(told("strange")) < 1e-12


def test_what_cannot_be_spread_is_named() -> None:
    for said in told("refused"):
        assert "the model has no modules of experts" in said["none"]
        assert "Llama4TextExperts: its forward() takes hidden_states" in said["others"]
        assert "DeviceMesh(dp=2; cpu) has none" in said["no axis"]
        assert "'model.layers.0.mlp' cannot be cut: it has 'gate.weight'" in said["a block"]
        assert "has no axis 'tp' along which layers are cut" in said["cut"]
        assert "are in several stages" in said["stages"]
        assert "pass the whole mesh" in said["a part"]
        assert "1 expert(s) are too few for 2 ranks" in said["too few"]
        assert "down_proj' with values of checksum " in said["values"]
        assert "did not give weighted sums" in said["sums"]
        assert "say Experts(counts=(…))" in said["counts"]
        assert "leave out return_dict=False" in said["a tuple"]
        assert "experts.gate_up_proj', of which ranks 0, 1 have different" in said["torch's"]
