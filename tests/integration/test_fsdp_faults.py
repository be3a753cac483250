"""FullyShardedDataParallel in trouble, nested wrappers, and models on the meta device."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]


WAYS = ("common", "gathered", "device", "offloaded")


@cache
def found() -> dict[Any, list[Any]]:
    from support import fsdp_faults, fsdp_meta

    bodies: dict[Any, Any] = {"large": fsdp_meta.large}  # before others leave memory to it
    for each in ("unused_in_a_unit", "not_finite", "refused", "other_ranks", "nested_facts"):
        bodies[each] = getattr(fsdp_faults, each)
    bodies["computed_again"] = fsdp_faults.computed_again
    bodies["tied_across"] = fsdp_faults.tied_across
    bodies["summoned"] = fsdp_faults.summoned
    for each in ("twice", "broken_off", "unused_by_all"):
        for way in WAYS:
            bodies[each, way] = partial(getattr(fsdp_faults, each), way)
    for each in ("odd", "from_rank_0", "by_function", "devices"):
        bodies[each] = getattr(fsdp_meta, each)
    return run_in_one_world(2, bodies, 60.0)


def results(key: Any) -> list[Any]:
    return whole(found()[key])


def whole(given: list[Any]) -> list[Any]:
    for result in given:
        assert not isinstance(result, Raised), result.error.args[0]
    return given


@pytest.mark.parametrize("way", WAYS)
def test_a_unit_that_one_rank_does_not_use_is_an_error_on_all(way: str) -> None:
    from support import fsdp_faults

    for text in whole(run_processes(2, partial(fsdp_faults.unused, way), 30.0)):
        assert text.startswith("GradientError")
        assert "same parameters" in text


def test_a_parameter_that_one_rank_does_not_use_is_named_on_all() -> None:
    (text, gradients), (other, others) = results("unused_in_a_unit")
    assert text == other
    assert "rank 0: gradients came of all" in text
    assert "rank 1: gradients came of all but 'second.weight', 'second.bias'" in text
    assert sum(each.numel() for each in [*gradients, *others]) == 24


@pytest.mark.parametrize("way", WAYS)
def test_what_no_rank_uses_keeps_the_gradient_that_it_has(way: str) -> None:
    for is_none in results(("unused_by_all", way)):
        assert is_none == [False, False, True, True]


def test_the_model_is_not_called_while_its_parameters_are_whole() -> None:
    for text, names, after in results("summoned"):
        assert text.startswith("ConfigError: the model was called inside summon_full_params")
        assert names == ["first.bias", "first.weight", "second.bias", "second.weight"]
        assert after == 1.0


def test_gradients_that_are_not_finite() -> None:
    for text in results("not_finite"):
        assert text.startswith("GradientError")
        assert "not finite" in text


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_that_was_kept_serves_twice(way: str) -> None:
    for text in results(("twice", way)):
        assert "second time" in text


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_that_all_break_off_leaves_nothing(way: str) -> None:
    assert results(("broken_off", way)) == ["ValueError: no"] * 2


def test_a_rank_that_leaves_or_skips_a_batch_is_named() -> None:
    from support import fsdp_faults

    text = whole(run_processes(2, fsdp_faults.one_rank_leaves, 30.0))[0]
    assert text.startswith("PeerLost: rank 1")
    for text in whole(run_processes(2, fsdp_faults.one_rank_skips, 30.0)):
        assert text.startswith(("CommMismatch", "GradientError", "PeerLost"))
        assert "rank" in text


@pytest.mark.parametrize("others", ["train", "reduce", "end", "load"])
def test_state_that_one_rank_alone_asks_for_is_named(others: str) -> None:
    from support import fsdp_faults

    body = partial(fsdp_faults.one_rank_saves, others)
    first, second = whole(run_processes(2, body, 30.0))
    assert "state_dict() of a sharded model" in first
    assert ("on all of them" in first) == (others != "load")
    if others in ("train", "load"):
        assert "state_dict()" in second


def test_options_that_make_no_sense_are_refused() -> None:
    for said in results("refused"):
        assert "use_orig_params" in said[0]
        assert "param_dtype must be a floating point dtype" in said[1]
        assert "must be a MixedPrecision()" in said[2]
        assert "must be a function" in said[3]
        assert "param_dtype='float16'" in said[4]
        assert "activation_checkpointing=False on rank(s) 0" in said[5]
        assert "wrap its .module" in said[6]
        assert "float31" in said[7]
        assert all(each.startswith("ConfigError") for each in said)


def test_units_within_the_model_are_computed_again() -> None:
    assert results("computed_again") == [[1, 2, 2]] * 2


def test_nested_wrappers_are_one_model() -> None:
    names = ["first.weight", "first.bias", "second.weight", "second.bias"]
    for facts in results("nested_facts"):
        assert facts["state"]
        assert facts["norm"]
        assert sorted(facts["pieces"]) == sorted(names)
        assert facts["ratio"] == 0.5
        assert facts["alone"] == (2, 3)
        assert facts["whole"] == 24 * 4
    for text in results("other_ranks"):
        assert "'first' in the model is sharded over other ranks" in text
    for text in results("tied_across"):
        assert text.startswith("ConfigError")
        assert "'second' has a parameter of a part that is sharded already" in text


def test_no_rank_ever_has_all_of_a_model_from_the_meta_device() -> None:
    (most, sums), (other, others) = results("large")
    assert max(most, other) < 48, "of 64 MiB, of which 32 are each rank's"
    assert sums == others


def test_odd_models_from_the_meta_device() -> None:
    import torch

    state, other = results("odd")
    assert all(torch.equal(each, other[name]) for name, each in state.items())
    assert state["norm.num_batches_tracked"] == 1
    assert all(torch.isfinite(each).all() for each in state.values())
    assert state["attention.in_proj_weight"].std() > 0.1


def test_rank_0s_values_go_to_ranks_that_have_none() -> None:
    import torch

    (state, expected), (other, _) = results("from_rank_0")
    for name, each in expected.items():
        assert torch.equal(state[name], each)
        assert torch.equal(other[name], each)


def test_modules_that_cannot_initialise_themselves_need_a_function() -> None:
    for values, text in results("by_function"):
        assert values == {3.0}
        assert text.startswith("ConfigError")
        assert "'1'" in text
        assert "param_init_fn" in text


def test_values_go_to_the_device_that_was_given_or_the_groups() -> None:
    for rank, said in enumerate(results("devices")):
        assert said[:2] == ["ConfigError: cpu", f"ConfigError: cuda:{rank}"]
        assert "device 'nowhere' is none of torch's" in said[2]
        assert said[3] == "ConfigError: cuda"
        assert "devices of parameters" in said[4]
        assert "cuda" in said[4]
        assert "before the model is wrapped" in said[5]
