"""Pipelines of which something changes are what one process computes."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import pipeline_changes, pipeline_lanes
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
with_both = pytest.mark.parametrize("kind", ["nn", pytest.param("torch", marks=needs_torch)])


@pytest.fixture(autouse=True, scope="module")
def _torch_is_loaded() -> None:
    """Once, and not in each rank."""
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401


def compare(bodies: dict[str, Any]) -> None:
    for name, results in run_in_one_world(2, bodies, 60.0).items():
        for each in results:
            assert not isinstance(each, Raised), each.error.trace
            for what, (got, expected) in each.items():
                wanted = {"rtol": 1e-9, "atol": 1e-12, "err_msg": f"{name}: {what}"}
                np.testing.assert_allclose(got, expected, **wanted)


@with_both
def test_tied_parameters_are_trained_in_some_steps_only(kind: str) -> None:
    compare(
        {
            f"{schedule}, begins trained: {begins}": partial(
                pipeline_changes.thawed, kind=kind, schedule=schedule, begins_trained=begins
            )
            for schedule in ("1f1b", "zb-h1")
            for begins in (True, False)
        }
    )


def test_tied_parameters_that_one_rank_alone_trains_are_refused_on_all() -> None:
    for said in run_processes(2, pipeline_changes.apart, 20.0):
        assert "is to be trained on rank 0, and is a constant on rank 1" in said


@with_both
def test_stages_may_give_what_they_go_on_to_change(kind: str) -> None:
    compare(
        {
            schedule: partial(pipeline_changes.counted, kind=kind, schedule=schedule)
            for schedule in ("gpipe", "zbv")
        }
    )


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_weight_gradients_that_come_later_may_be_of_complex_numbers() -> None:
    compare({"complex": pipeline_changes.of_complex_numbers})


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_steps_without_gradients_are_refused_on_all() -> None:
    for said in run_processes(2, pipeline_changes.inferring, 20.0):
        assert "rank 0: step() in torch.inference_mode() has no gradients" in said


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_what_a_tensor_has_besides_its_values_is_refused_between_stages() -> None:
    for said in run_processes(2, pipeline_changes.marked, 20.0):
        assert "stage 0, F0: TypeError: the last layer of stage 0 returned a Tensor" in said
        assert "with an attribute 'scale'" in said


def test_half_a_step_is_no_part_of_the_next_one() -> None:
    for said in run_processes(2, pipeline_changes.interrupted, 30.0):
        assert "KeyboardInterrupt" in said or "aborted the group" in said
        assert said != "interrupted; "


def test_numbers_of_microbatches_are_looked_at_before_tables_are_built() -> None:
    for said in run_processes(2, pipeline_changes.of_no_number, 20.0):
        assert "num_microbatches=4.0: a whole number from 1 to 4095" in said


def test_shapes_of_batches_are_kept_of_the_latest_ones() -> None:
    compare({"many": pipeline_changes.of_many_shapes})


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_messages_of_all_sizes(schedule: str) -> None:
    compare({schedule: partial(pipeline_changes.of_large_messages, schedule=schedule)})


def test_messages_without_anything_come_in_their_turn() -> None:
    constant = pipeline_changes.of_a_constant_stage
    compare({"tags": constant, "lanes": partial(pipeline_lanes.on_lanes, body=constant)})
