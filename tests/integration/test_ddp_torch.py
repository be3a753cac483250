"""Our DistributedDataParallel on torch models: what comes out is what one process computes."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.worlds import Raised, run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

NAMES = (
    "plain",
    "overlapping",
    "inline",
    "many buckets",
    "no views",
    "zeroed in place",
    "accumulating",
    "no_sync",
    "no_sync, zeroed in place",
    "sometimes unused",
    "never used",
    "never used, static",
    "static",
    "checkpoint",
    "reentrant checkpoint",
    "reduced in float64",
    "checked for NaN",
    "autocast",
    "reduced in bfloat16",
    "compiled inside",
    "compiled outside",
)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_trains_as_one_process_does(name: str, ranks: int) -> None:
    import torch
    from support import ddp_training

    assert set(NAMES) == set(ddp_training.COURSES)
    states = run_processes(ranks, lambda rank: ddp_training.together(name, rank, ranks), 60.0)
    for state in states:
        assert not isinstance(state, Raised), state.error.args[0]
    # Not here: of torch that has set its threads in this process forked ranks would die.
    (expected,) = run_processes(1, lambda rank: ddp_training.alone(name, ranks), 60.0)
    assert not isinstance(expected, Raised), expected.error.args[0]
    for key, value in expected.items():
        rounded = name in ("autocast", "reduced in bfloat16")
        loose = {"rtol": 0.05, "atol": 0.02} if rounded else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(states[0][key], value, **loose)
        for state in states[1:]:
            assert torch.equal(state[key], states[0][key]), key


def ranks_of(name: str, ranks: int = 2) -> list[Any]:
    """What each rank's part of ddp_faults returned."""
    from support import ddp_faults

    body = getattr(ddp_faults, name)
    results = run_processes(ranks, lambda rank: body(rank, ranks))
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


def both(name: str) -> Any:
    """The same, where all ranks are to say the same."""
    first, second = ranks_of(name)
    assert str(first) == str(second)
    return first


def mean_gradient() -> Any:
    """Of the first layer of ddp_faults.Two, for inputs of 1 on rank 0 and 2 on rank 1."""
    return ranks_of("mean", ranks=1)[0]


def test_a_missing_gradient_is_told_by_all_and_all_can_go_on() -> None:
    import torch

    text, gradient = both("unused")
    assert text.startswith(
        "GradientError: rank 1: parameters 'second.weight', 'second.bias' got no"
    )
    assert "find_unused_parameters=True" in text
    torch.testing.assert_close(gradient, mean_gradient())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "not_finite",
            "GradientError: rank 1: parameter 'second.weight' has a gradient that is not",
        ),
        ("reshaped", "rank 1: parameter 'second.bias' has a gradient of shape (5,), and had"),
        ("again", "rank 0: parameter 'second.bias' got its gradient again"),
        ("static_changes", "GradientError: rank 1: parameters 'second.weight', 'second.bias' got"),
        ("twice", "backward through the graph a second time"),
        ("interrupted_then_unused", "'second.weight', 'second.bias' got no gradient"),
        ("unfrozen", "parameter 'second.weight' wants gradients, and did not when the model was"),
        ("second_hook", "ConfigError: gradients are averaged by a hook already"),
        ("no_parameters", "ConfigError: the model has no parameter that wants gradients"),
    ],
)
def test_what_is_amiss_on_one_rank_all_say(name: str, expected: str) -> None:
    assert expected in both(name)


def test_a_pass_that_was_broken_off_leaves_nothing_behind() -> None:
    import torch

    text, gradient = both("interrupted")
    assert text == "ValueError: no"
    torch.testing.assert_close(gradient, mean_gradient())


def test_models_that_differ_are_named() -> None:
    shape, length = both("other_models")
    assert "'1.weight' of shape (2, 2) and dtype float32 on rank(s) 0" in shape
    assert "'1.weight' of shape (3, 2) and dtype float32 on rank(s) 1" in shape
    assert "nothing more on rank(s) 0, parameter '2.weight'" in length


def test_options_that_differ_are_named() -> None:
    import torch
    from support.ddp_faults import OTHER_OPTIONS

    texts, gradient = both("other_options")
    for (name, value), text in zip(OTHER_OPTIONS.items(), texts, strict=True):
        assert text.startswith("ConfigError: models are not wrapped alike on all ranks: ")
        assert f", {name}={value!r} on rank(s) 1. " in text
        assert text.count("on rank(s) 0") == 1
    torch.testing.assert_close(gradient, mean_gradient())


def test_without_a_comparison_at_first_options_are_compared_later() -> None:
    unused, sync = both("other_options_unsynced")
    assert "find_unused_parameters=False on rank(s) 0, find_unused_parameters=True on" in unused
    assert "init_sync=True on rank(s) 0, init_sync=False on rank(s) 1" in sync


def test_options_of_join_that_differ_are_named() -> None:
    expected = "join() has divide_by_initial_world_size=True on rank 0 and False on rank(s) 1"
    assert expected in both("other_joins")


def test_options_that_make_no_sense() -> None:
    texts = both("unknown_options")
    assert all(text.startswith(("ConfigError", "TypeError")) for text in texts)
    for text, word in zip(
        texts,
        ("bucket_cap", "more than 0", "float33", "one device", "no model", "'torsh'", "meta"),
        strict=True,
    ):
        assert word in text


def test_several_dtypes_layouts_and_buffers() -> None:
    assert ranks_of("dtypes_and_layouts") == [0, 0]


def test_two_wrappers_over_different_groups() -> None:
    import torch

    for bias, gradient in ranks_of("several"):
        assert torch.equal(bias, torch.full((3,), 2.0))
        torch.testing.assert_close(gradient, mean_gradient())


def test_a_hook_averages_instead() -> None:
    import torch

    for seen, bias in ranks_of("hooks"):
        names = [["second.bias"], ["second.weight"], ["first.bias"], ["first.weight"]]
        assert seen == [("state", i, i == 3, each) for i, each in enumerate(names)]
        assert torch.equal(bias, torch.full((3,), 6.0))


def test_what_a_hooks_future_holds_is_taken() -> None:
    assert ranks_of("returned") == [{7.0}, {7.0}]


def test_buffers_are_those_of_rank_0_where_ranks_go_in_step() -> None:
    first, second = ranks_of("buffers")
    assert first == pytest.approx([0.9, 0.9, 1.0])
    assert second == pytest.approx([0.9, 1.8, 2.0])


def test_a_rank_with_fewer_batches_is_named() -> None:
    text, _ = ranks_of("one_rank_leaves")
    assert text.startswith("PeerLost: rank 1")


def test_a_wrapper_inside_a_checkpoint() -> None:
    import torch

    for gradients in ranks_of("inside_a_checkpoint"):
        for gradient in gradients:
            torch.testing.assert_close(gradient, mean_gradient())


def test_pickled_and_copied_wrappers() -> None:
    import torch

    for found, text in ranks_of("copied"):
        for gradient in found:
            torch.testing.assert_close(gradient, mean_gradient())
        assert "not of the default group" in text


def test_a_model_from_the_meta_device_gets_rank_0s_values() -> None:
    assert ranks_of("from_meta") == [{3.0}, {3.0}]


def test_gradients_whose_memory_was_changed_are_averaged() -> None:
    import torch

    for found in ranks_of("moved_gradients"):
        for gradient in found:
            torch.testing.assert_close(gradient, mean_gradient())


def test_gradients_that_come_past_the_outputs_are_not_lost() -> None:
    import torch

    text, gradient = both("unseen")
    assert "parameter 'second.weight' got a gradient, and the model's outputs do not" in text
    torch.testing.assert_close(gradient, mean_gradient())


def test_a_model_can_be_wrapped_anew() -> None:
    import torch

    for hooks, gradient in ranks_of("wrapped_anew"):
        assert hooks == 1
        torch.testing.assert_close(gradient, mean_gradient())


def test_a_gradient_by_the_inputs_is_no_pass_of_its_own() -> None:
    ranks_of("penalty")


def test_hooks_do_not_pile_up_on_parameters_that_are_outputs() -> None:
    assert ranks_of("returns_a_parameter") == [0, 0]


def test_a_gradient_by_the_outputs_is_no_pass_either() -> None:
    import torch

    for gradient in ranks_of("by_the_outputs"):
        torch.testing.assert_close(gradient, mean_gradient())


def test_complex_gradients_keep_their_dtype() -> None:
    assert ranks_of("complex_parameters") == [[1.5j, 2j]] * 2
