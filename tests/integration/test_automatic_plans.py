"""Models of transformers cut by themselves: one process's numbers, or refused by name."""

from __future__ import annotations

import importlib.util

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
    pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers"),
    pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="needs peft"),
]


def test_families_have_the_numbers_of_one_process() -> None:
    from support import automatic_plans

    for result in run_processes(2, automatic_plans.right, 240.0):
        assert not isinstance(result, Raised), result.error
        assert {name: wrong for name, wrong in result.items() if wrong} == {}


def test_what_cannot_be_read_or_cut_is_named() -> None:
    from support import automatic_plans

    bodies = {"refused": automatic_plans.refused, "changed": automatic_plans.changed}
    found = run_in_one_world(2, bodies, 120.0)
    for result in found["changed"]:
        assert not isinstance(result, Raised), result.error
        assert "resize first, and call tr.parallelize() then" in result["resized"]
        assert "'model.layers.0.mlp.down_proj' has been cut, and a Linear in its" in result["row"]
        assert "'model.layers.0.self_attn.q_proj' has been cut" in result["column"]
        assert "a part of shape (24, 32) of its weight of shape (48, 32), an" in result["weight"]
        assert "knows this rank's parts of gradients only" in result["clipped"]
        assert result["wrapped"] == "nothing"
        assert result["replaced"] == ""
    for result in found["refused"]:
        assert not isinstance(result, Raised), result.error
        assert "'layers.*.mlp.up_proj' of the model's plan is 'diagonal'" in result["style"]
        assert "Column(), Row() or Vocabulary()" in result["style"]
        assert "'model.layers.0.mlp.gate_proj' cannot be cut: 1 features" in result["few"]
        assert "Sequential carries no plan of transformers" in result["strange"]
        assert "a plan is a mapping or 'auto', not 'automatic'" in result["word"]
        assert "'model.layers.0.experts' holds experts" in result["experts"]
        assert "'model.layers.0' holds both them and their router" in result["experts"]
        assert "has a gradient of an earlier backward pass" in result["gradient"]
        assert "cut the model before the optimizer's first step" in result["state"]
        assert "output_attentions, and each rank has those of its own heads" in result["heads"]
        assert "output_hidden_states, and each rank has those of its own tok" in result["tokens"]


def test_adapters_that_know_nothing_of_parts_are_refused() -> None:
    from support import automatic_plans

    for result in run_processes(2, automatic_plans.late_adapters, 120.0):
        assert not isinstance(result, Raised), result.error
        assert "attn.c_attn' is given adapters after it was cut" in result["late"]
        assert "'two' is one more adapter beside" in result["twice"]
        assert "say use_dora=False" in result["magnitudes"]
        assert "k_proj' is adapted by peft.tuners.ia3.layer.Linear" in result["factors"]
