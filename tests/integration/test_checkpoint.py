"""Checkpoints of real trainings, saved and loaded by any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import checkpoint_training
from support.forked import Raised
from support.worlds import run_processes

FRAMEWORKS = ["nn", pytest.param("torch", marks=pytest.mark.torch)]


def on_ranks(part: str, framework: str, way: str, ranks: int, *arguments: Any) -> None:
    function = getattr(checkpoint_training, part)
    results = run_processes(ranks, lambda rank: function(framework, way, rank, ranks, *arguments))
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]


def check_same(one: Path, other: Path) -> None:
    """Both are of one checkpoint each, with the same in it, bit by bit."""
    (tensors, values), (others, other_values) = (
        checkpoint_training.everything(next(each.glob("step-*"))) for each in (one, other)
    )
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == others[name].dtype, name
        assert tensor.tobytes() == others[name].tobytes(), name
    assert values == other_values


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("way", "ranks"),
    [("one", 1), ("fsdp", 1), *((way, n) for way in ("ddp", "fsdp") for n in (2, 3, 8))],
)
def test_what_four_ranks_have_saved_is_loaded_by_any_others(
    framework: str, way: str, ranks: int, tmp_path: Path
) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    on_ranks("save", framework, "fsdp", 4, tmp_path / "first", 4)
    on_ranks("load_and_save", framework, way, ranks, tmp_path / "first", tmp_path / "second")
    check_same(tmp_path / "first", tmp_path / "second")


@pytest.mark.torch
@pytest.mark.parametrize(("way", "ranks"), [("one", 1), ("zero", 3), ("fsdp", 2)])
def test_the_state_of_a_sharded_optimizer_is_loaded_by_any_others(
    way: str, ranks: int, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    on_ranks("save", "torch", "zero", 4, tmp_path / "first", 4)
    on_ranks("load_and_save", "torch", way, ranks, tmp_path / "first", tmp_path / "second")
    (tensors, _), (others, _) = (
        checkpoint_training.everything(next((tmp_path / each).glob("step-*")))
        for each in ("first", "second")
    )
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, others[name], name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("ways", [("one", "fsdp"), ("fsdp", "one"), ("ddp", "fsdp")])
def test_a_training_goes_on_where_it_was(
    framework: str, ways: tuple[str, str], tmp_path: Path
) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    sizes = {"one": 1, "ddp": 2, "fsdp": 4}
    first, second = ways
    undisturbed, stopped = tmp_path / "undisturbed", tmp_path / "stopped"
    on_ranks("save", framework, "one", 1, undisturbed, 12)
    on_ranks("save", framework, first, sizes[first], stopped, 5)
    on_ranks("resume", framework, second, sizes[second], stopped, 12)
    expected, _ = checkpoint_training.everything(undisturbed / "step-00000012")
    found, _ = checkpoint_training.everything(stopped / "step-00000012")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-3, atol=1e-5, err_msg=name)
