"""What programs do with wrapped models: it is right, or refused by name on every rank."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
NEAR = 2e-6


@cache
def found() -> dict[Any, list[Any]]:
    from support import held_parameters, optimizers_on_parts, wrapped_models

    bodies: dict[Any, Any] = {}
    for name in ("used_by_others", "unfrozen", "by_methods"):
        for gathers in (False, True):
            bodies[name, gathers] = partial(getattr(wrapped_models, name), gathers)
    for name in ("after_a_step", "grouped", "put_values", "refused", "layers_added", "experts"):
        bodies[name] = getattr(wrapped_models, name)
    bodies["scaled"] = wrapped_models.scaled
    for gathers in (False, True):
        for replicates in (False, True):
            held = partial(held_parameters.added, gathers=gathers, replicates=replicates)
            bodies["held", gathers, replicates] = held
    for name in ("refused", "refused_by_plan", "accepted", "clipped", "perturbed"):
        bodies["optimizers", name] = getattr(optimizers_on_parts, name)
    return run_in_one_world(2, bodies, 60.0)


def results(key: Any) -> list[Any]:
    for result in found()[key]:
        assert not isinstance(result, Raised), result.error.args[0]
    return found()[key]


@pytest.mark.parametrize("gathers", [False, True])
def test_weights_that_other_modules_use_are_whole_there(gathers: bool) -> None:
    for differences in results(("used_by_others", gathers)):
        assert max(differences) < NEAR


@pytest.mark.parametrize("gathers", [False, True])
def test_a_layer_that_is_unfrozen_later_is_trained(gathers: bool) -> None:
    assert max(results(("unfrozen", gathers))) < NEAR


@pytest.mark.parametrize("gathers", [False, True])
def test_methods_and_the_module_itself_train_as_the_wrapper_does(gathers: bool) -> None:
    for differences in results(("by_methods", gathers)):
        assert max(differences) < NEAR


def test_calls_past_the_wrapper_compute_with_present_values() -> None:
    assert results("after_a_step") == [[0.0, 0.0]] * 2


def test_parameters_keep_their_number_of_dimensions() -> None:
    for before, after in results("grouped"):
        assert after == [(each,) * 3 for each in before]


def test_values_that_are_put_in_place_count_or_are_refused() -> None:
    for is_taken_over, (cast, whole) in results("put_values"):
        assert is_taken_over
        assert "are float32 on cpu, and would become float64 on cpu" in cast
        assert "before it is sharded" in cast
        assert "'0.weight' has become float32 (12, 12)" in whole


def test_what_takes_parts_for_whole_parameters_is_refused() -> None:
    first, other = results("refused")
    assert first == other
    assert all(text.startswith("ConfigError: ") for text in first.values()), first
    assert "leave it out" in first["assign"]
    copies = {first[name] for name in ("deepcopy", "deepcopy of the module", "pickle")}
    assert copies == {first["AveragedModel"]}
    assert "tr.checkpoint.Checkpointer" in first["AveragedModel"]
    assert "state_dict=model.state_dict()" in first["state of the module"]
    assert first["state of a layer"] == first["state of the module"]
    assert "'0' gives sparse gradients" in first["sparse"]
    assert "no method 'encode'" in first["no method"]


def test_layers_that_are_added_later_are_named() -> None:
    for texts in results("layers_added"):
        assert texts[::2] == ["nothing"] * 2
        assert all("when it was wrapped: '4.weight', '4.bias'" in each for each in texts[1::2])


def test_experts_without_tokens_take_an_empty_batch() -> None:
    assert max(results("experts")) < NEAR


def test_torchs_scaler_leaves_a_step_out_on_all_ranks() -> None:
    assert results("scaled") == [([2.0, 2.0], True)] * 2


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("replicates", [False, True])
def test_zero_grad_drops_gradients_while_parameters_are_whole(
    gathers: bool, replicates: bool
) -> None:
    dropped = {"before": 10, "after": 10, "late": 10, "by the model": 100, "twice": 100}
    expected = {"never": 11, "shown": 11, **dropped}
    for found in results(("held", gathers, replicates)):
        found = {name: {*gradients} for name, gradients in found.items()}
        assert found.pop("between in place") == {101.0}  # nothing tells of the second zero_grad()
        assert found.pop("between") == {100.0}
        assert {name.removesuffix(" in place") for name in found} == {*expected}
        for name, gradients in found.items():
            assert gradients == {expected[name.removesuffix(" in place")]}, name


def test_optimizers_that_look_at_whole_parameters_are_refused() -> None:
    for scene in ("refused", "refused_by_plan"):
        first, other = results(("optimizers", scene))
        assert first == other
        for name, text in first.items():
            assert text.startswith("ConfigError: "), (name, text)
            assert f"{name} does not compute elementwise" in text
            assert "AdamW" in text


def test_steps_that_only_perturb_are_looked_at_as_well() -> None:
    first, other = results(("optimizers", "perturbed"))
    assert first == other
    *parts, of_whole = first
    assert of_whole == "nothing"
    for text in parts:
        assert text.startswith("ConfigError: ")
        assert "Sharpness does not compute elementwise" in text


def test_elementwise_optimizers_of_strangers_are_not() -> None:
    for texts in results(("optimizers", "accepted")):
        assert set(texts.values()) == {"nothing"}, texts


def test_torchs_clipping_is_refused_where_it_cannot_be_corrected() -> None:
    for fsdp, plan, whole, experts in results(("optimizers", "clipped")):
        assert fsdp == "nothing"
        assert "such as of '0.weight'" in plan
        assert "tr.clip_grad_norm_(model, max_norm, mesh)" in plan
        assert whole == "nothing"
        assert "such as of 'up'" in experts


def test_encoders_and_decoders_generate_as_in_one_process() -> None:
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs transformers")
    from support import wrapped_models

    bodies: dict[Any, Any] = {"generated": wrapped_models.generated}
    for told in run_in_one_world(2, bodies, 60.0)["generated"]:
        assert not isinstance(told, Raised), told.error.args[0]
        refused = {name: told.pop(name) for name in [*told] if name.endswith("encoder")}
        assert [*told.values()] == ["", ""], told
        assert all("was called outside of the model" in each for each in refused.values()), refused
