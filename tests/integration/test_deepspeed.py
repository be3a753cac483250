"""DeepSpeed's configurations train as one process does, or are refused on every rank."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
MODES = {
    "fp32": ({}, 1e-6),
    "bf16": ({"bf16": {"enabled": True}}, 0.02),
    "fp16": ({"fp16": {"enabled": True, "initial_scale_power": 8}}, 0.003),
    "torch_autocast": ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, 0.02),
    "recomputed": ({"activation_checkpointing": {"number_checkpoints": 2}}, 1e-6),
}
CASES = [(mode, stage) for mode in MODES for stage in range(4)]
OFFLOADED = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}


@cache
def results() -> dict[Any, list[Any]]:
    from support import deepspeed_training as training

    bodies: dict[Any, Any] = {"alone": training.of_one_process}
    bodies |= {
        (mode, stage): partial(
            training.trained, {**MODES[mode][0], "zero_optimization": {"stage": stage}}
        )
        for mode, stage in CASES
    }
    offloaded = {"stage": 3, "stage3_param_persistence_threshold": 10, **OFFLOADED}
    bodies["offloaded"] = partial(training.trained, {"zero_optimization": offloaded})
    bodies["overflown"] = training.overflown
    bodies["own parts"] = training.with_own_parts
    with tempfile.TemporaryDirectory() as folder:
        bodies["resumed"] = partial(training.resumed, Path(folder))
        bodies["refused"] = partial(training.refusals, Path(folder))
        return run_in_one_world(2, bodies, 60.0)


def of_all(key: Any) -> list[Any]:
    for result in results()[key]:
        assert not isinstance(result, Raised), result.error.trace
    return results()[key]


@pytest.mark.parametrize(("mode", "stage"), CASES)
def test_every_stage_has_the_losses_of_one_process(mode: str, stage: int) -> None:
    for losses, alone in zip(of_all((mode, stage)), of_all("alone"), strict=True):
        assert losses == pytest.approx(alone, rel=MODES[mode][1])


def test_offloading_and_small_units_change_no_loss() -> None:
    assert of_all("offloaded")[0] == pytest.approx(of_all("alone")[0], rel=1e-6)


def test_a_step_that_overflows_on_one_rank_is_skipped_on_all() -> None:
    scales, skipped = of_all("overflown")[0]
    assert of_all("overflown")[1] == (scales, skipped)
    assert skipped == [0, 1, 2, 2, 2, 2]
    assert scales == [256, 256, 128, 128, 128, 256]


def test_checkpoints_of_a_stage_are_loaded_by_any_other() -> None:
    for found in of_all("resumed"):
        for stage in (0, 1, 3):
            assert found[f"stage {stage}"] == pytest.approx(found["whole"], rel=1e-6)
        assert "CheckpointError" in found["missing"]
        assert "is the tag 'none' right?" in found["missing"]
        assert "tag '../a' must be a plain name" in found["elsewhere"]
        assert "different tags: of rank 0 on rank(s) 0, of rank 1 on rank(s) 1" in found["tags"]


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_checkpoints_are_loaded_by_other_numbers_of_ranks(
    before: int, after: int, tmp_path: Path
) -> None:
    from support import deepspeed_training as training

    for found in run_in_one_world(
        before, {"saved": partial(training.saved_by_each_stage, tmp_path)}, 60.0
    )["saved"]:
        assert not isinstance(found, Raised), found.error.trace
    bodies = {"continued": partial(training.continued_at_other_size, tmp_path)}
    for found in run_in_one_world(after, bodies, 60.0)["continued"]:
        assert not isinstance(found, Raised), found.error.trace
        for name, (saved_by, scale, losses) in found.items():
            assert saved_by == before
            assert scale == (512 if "fp16" in name else 1)
            tolerance = 0.003 if "fp16" in name else 1e-6
            assert losses == pytest.approx(of_all("alone")[0][3:], rel=tolerance), name


def test_programs_bring_their_own_optimizer_schedule_and_data() -> None:
    first, second = of_all("own parts")
    for name in ("ddp", "fsdp"):
        rows, state = first[name]
        assert sorted(rows + second[name][0]) == list(range(8))
        assert state == second[name][1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("different", "initialize() differs between ranks"),
        ("none", "has no DeepSpeed configuration: pass config="),
        ("sizes", "do not multiply: train_batch_size 3, on 2 ranks"),
        ("argument", "has no 'learning_rate': it has lr"),
        ("optimizer", "optimizer.type is 'Adamm', which torch.optim has not"),
        ("schedule", "scheduler.type is 'Warmup': it may be LRRangeTest"),
        ("total", "scheduler.params of WarmupDecayLR lacks total_num_steps"),
        ("alone", "has a scheduler, and no optimizer"),
        ("mpu", "mpu: tensor parallelism is not combined"),
        ("two", "pass one DeepSpeed configuration, and not config and config_params"),
        ("foreign", "parameters that are none of the model's"),
        ("spent", "has stepped before initialize()"),
        ("model", "model is a builtin_function_or_method"),
        ("auto", "pass auto= to DeepSpeedConfig"),
        ("step", "step() needs an optimizer"),
        ("unscaled", "call engine.backward(loss), or engine.scale(loss).backward()"),
        ("loss", "backward() takes a loss, one number in a tensor, and not one of shape (2,)"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(name: str, told: str) -> None:
    for found in of_all("refused"):
        assert found[name].startswith("ConfigError: ")
        assert told in found[name]


def test_optimizers_that_need_whole_parameters_step() -> None:
    assert {found["whole"] for found in of_all("refused")} == {"nothing"}


def test_what_is_not_there_of_deepspeed_says_where_to_look() -> None:
    for found in of_all("refused"):
        assert found["absent"].startswith("AttributeError: ")
        assert "docs/deepspeed.md says what there is" in found["absent"]


def test_a_file_that_one_rank_cannot_read_is_refused_on_every_rank() -> None:
    first, second = (each["broken on one rank"] for each in of_all("refused"))
    assert first.startswith("ConfigError: rank 1: the DeepSpeed configuration ")
    assert second == first
    assert "is no JSON" in first
    assert "is no JSON" in second
