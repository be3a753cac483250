"""Our DistributedDataParallel on torch models: what comes out is what one process computes."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import cache, partial
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

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

OF_THREE = (
    "plain",
    "overlapping",
    "many buckets",
    "accumulating",
    "sometimes unused",
    "never used",
)
"""Courses in which it matters that ranks are three."""


def names(ranks: int) -> tuple[str, ...]:
    """Of courses."""
    return NAMES if ranks == 2 else OF_THREE


@cache
def trained(ranks: int) -> dict[Any, list[Any]]:
    """All courses twice, and one by torch."""
    from support import ddp_training

    bodies: dict[Any, Any] = {}
    for name in names(ranks):
        for run in range(2):
            bodies[name, run] = partial(ddp_training.together, name, ranks=ranks)
    with tempfile.TemporaryDirectory() as folder:
        bodies["torch"] = partial(ddp_training.by_torch, folder, ranks=ranks)
        return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    """The results, of which none is an error."""
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks"), [(name, ranks) for ranks in (2, 3) for name in names(ranks)]
)
def test_trains_as_one_process_does(name: str, ranks: int) -> None:
    import torch
    from support import ddp_training

    assert set(NAMES) == set(ddp_training.COURSES)
    first, *others = whole(trained(ranks)[name, 0])
    again = whole(trained(ranks)[name, 1])
    expected = ddp_training.alone(name, ranks)
    rounded = name in ("autocast", "reduced in bfloat16")
    loose = {"rtol": 0.05, "atol": 0.02} if rounded else {"rtol": 1e-4, "atol": 1e-5}
    for key, value in expected.items():
        if key == "losses":  # each rank's own, of its rows
            states = zip([first, *others], again, strict=True)
            assert all(torch.equal(one[key], other[key]) for one, other in states)
            continue
        torch.testing.assert_close(first[key], value, **loose)
        for state in (*others, *again):
            assert torch.equal(state[key], first[key]), key


@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_are_those_of_torchs_own_class(ranks: int) -> None:
    import torch

    ours, theirs = (whole(trained(ranks)[key]) for key in (("plain", 0), "torch"))
    for one, other in zip(ours, theirs, strict=True):
        assert one["losses"].shape == (24,)
        torch.testing.assert_close(one["losses"], other["losses"], rtol=1e-4, atol=1e-7)


FAULTS = (
    "mean",
    "unused",
    "not_finite",
    "reshaped",
    "again",
    "static_changes",
    "twice",
    "interrupted_then_unused",
    "unfrozen",
    "second_hook",
    "no_parameters",
    "interrupted",
    "one_breaks_off",
    "other_models",
    "other_options",
    "other_options_unsynced",
    "other_joins",
    "unknown_options",
    "dtypes_and_layouts",
    "several",
    "hooks",
    "returned",
    "buffers",
    "inside_a_checkpoint",
    "copied",
    "from_meta",
    "moved_gradients",
    "unseen",
    "wrapped_anew",
    "penalty",
    "returns_a_parameter",
    "by_the_outputs",
    "complex_parameters",
    "other_hooks",
    "joins_of_two_models",
    "replaced",
    "sparse_apart",
)


@cache
def of_two_ranks() -> dict[Any, list[Any]]:
    """What each rank's part of ddp_faults returned, of all that leave the group whole."""
    from support import ddp_faults

    parts = {name: partial(getattr(ddp_faults, name), ranks=2) for name in FAULTS}
    return run_in_one_world(2, parts)


def ranks_of(name: str) -> list[Any]:
    return whole(of_two_ranks()[name])


def both(name: str) -> Any:
    """The same, where all ranks are to say the same."""
    first, second = ranks_of(name)
    assert str(first) == str(second)
    return first


def mean_gradient() -> Any:
    """Of the first layer of ddp_faults.Two, for inputs of 1 on rank 0 and 2 on rank 1."""
    return ranks_of("mean")[0]


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


def test_a_rank_that_breaks_a_pass_off_alone_is_named() -> None:
    import torch

    text, gradient = both("one_breaks_off")
    assert text.startswith("GradientError: rank 1: broke off 1 backward pass(es) that others ended")
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
        assert text.startswith("ConfigError: DistributedDataParallel differs between ranks: ")
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


def test_a_rank_alone_checks_for_nan() -> None:
    from support import ddp_faults

    (text,) = whole(run_processes(1, partial(ddp_faults.not_finite, ranks=1)))
    assert text.startswith("GradientError: rank 0: parameter 'second.weight' has a gradient that")


def test_hooks_that_differ_are_named() -> None:
    for text, first in zip(
        both("other_hooks"), ("'other_hooks.<locals>.average'", None), strict=True
    ):
        assert text.startswith("ConfigError: DistributedDataParallel differs between ranks: ")
        assert f"register_comm_hook={first} on rank(s) 0, " in text


def test_blocks_of_several_models_at_once_are_refused() -> None:
    expected = "ConfigError: join() of rank(s) 1 is of another model than rank 0's"
    assert expected in both("joins_of_two_models")


def test_parameters_that_were_replaced_are_named() -> None:
    whole, part = both("replaced")
    assert "rank 0: parameters 'first.weight', 'first.bias', 'second.weight', 'second.bi" in whole
    assert "rank 1: parameters 'second.weight', 'second.bias' gave way to other tensors" in part


def test_sparse_gradients_that_are_no_views() -> None:
    assert both("sparse_apart") is True


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
    from support import ddp_faults

    text, _ = whole(run_processes(2, partial(ddp_faults.one_rank_leaves, ranks=2)))
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
